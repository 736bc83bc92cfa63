"""Reads collectives, matrix products and the peak of memory from the text of a compiled program."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..wire.collective import CollectiveInfo
from ..wire.descriptions import ProductInfo
from .collectives import inventory
from .module import Module, parse
from .peak_memory import Peak, peak_memory
from .products import products

_logger = logging.getLogger("shardtui")

UNREADABLE = "the text of the compiled step cannot be parsed"


class Described(NamedTuple):
    """The contents of a program's text."""

    collectives: list[CollectiveInfo] | None
    """None if the text cannot be read."""
    products: list[ProductInfo]
    """Empty if the text cannot be read, or if `written` is empty."""
    peak: Peak | None
    """The memory at the peak; None if the text cannot be read, or is not in the order of a schedule."""


def read(
    text: str, mesh: Mapping[str, int], arguments: Sequence[str], written: Mapping[str, float | None]
) -> Described:
    """Reads the text of a program on a mesh (axis to size).

    `arguments`: names of the program's arguments. `written`: scope to FLOPs of the code that was compiled. A text that
    cannot be read must not end a run: it only logs a traceback.
    """
    try:
        module = parse(text)
        collectives = inventory(module, mesh, arguments)
        return Described(collectives, products(module, written) if written else [], _peak(module, arguments))
    except Exception:
        _logger.warning(UNREADABLE, exc_info=True)
        return Described(None, [], None)


def read_collectives(text: str, mesh: Mapping[str, int], arguments: Sequence[str] = ()) -> list[CollectiveInfo] | None:
    """Reads the collectives alone, as `read` does."""
    try:
        return inventory(parse(text), mesh, arguments)
    except Exception:
        _logger.warning(UNREADABLE, exc_info=True)
        return None


def _peak(module: Module, arguments: Sequence[str]) -> Peak | None:
    try:
        return peak_memory(module, arguments)
    except Exception:
        _logger.warning("the buffers of the compiled step cannot be followed", exc_info=True)
        return None
