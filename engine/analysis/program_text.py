"""What the text of a compiled program tells of it."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..wire.descriptions import CollectiveInfo, ProductInfo
from .collectives import inventory
from .hlo import parse
from .products import products

_logger = logging.getLogger("shardtui")


class Told(NamedTuple):
    collectives: list[CollectiveInfo] | None
    """None where the text cannot be read."""
    products: list[ProductInfo]


def read(
    text: str, mesh: Mapping[str, int], arguments: Sequence[str], written: Mapping[str, float | None] | None = None
) -> Told:
    """`arguments`: names of the program's; `written`: the operations of what was compiled, by scope.

    Where the compiler prints what we cannot read there is a traceback in the log: that must not end a run.
    """
    try:
        module = parse(text)
        return Told(inventory(module, mesh, arguments), products(module, written) if written else [])
    except ValueError:
        _logger.warning("the text of the compiled step cannot be read", exc_info=True)
        return Told(None, [])
