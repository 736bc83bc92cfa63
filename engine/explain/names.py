"""Keeps the names that a program gives its values with `checkpoint_name`, which jax drops when it lowers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from .attributes import FRONTEND, attribute_of, owner_of

PREFIX = "shardtui.name."


@contextmanager
def kept_names() -> Iterator[None]:
    """In this context, what jax lowers keeps its names. For a process of its own: it changes jax's lowering."""
    primitive = jax.make_jaxpr(lambda x: checkpoint_name(x, ""))(0.0).eqns[0].primitive
    mlir.register_lowering(primitive, _lower, cacheable=False)
    try:
        yield
    finally:
        mlir.register_lowering(primitive, lambda _, value, **__: [value])


def names_of(attribute: Any) -> Iterator[tuple[int, str]]:
    """Yields result and name for each name in an operation's frontend attributes."""
    for entry in ir.DictAttr(attribute) if attribute is not None else ():
        if entry.name.startswith(PREFIX):
            yield int(entry.name.removeprefix(PREFIX)), ir.StringAttr(entry.attr).value


def _lower(_: Any, value: Any, *, name: str) -> list[Any]:
    operation = owner_of(value)
    if operation is None:
        return [value]
    if operation.name.startswith("chlo."):  # the passes write it anew, without its attributes
        value = hlo.reshape(value.type, value)
        operation = value.owner.operation
    known = attribute_of(operation, FRONTEND)
    entries = {entry.name: entry.attr for entry in ir.DictAttr(known)} if known is not None else {}
    position = next(index for index, result in enumerate(operation.results) if result == value)
    entries.setdefault(f"{PREFIX}{position}", ir.StringAttr.get(name))
    operation.attributes[FRONTEND] = ir.DictAttr.get(entries)
    return [value]
