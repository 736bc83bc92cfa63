"""Small programs on the mesh that is set: their arguments, their explanation, and what the compiler makes of them."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.compiled import with_compiled
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import CompiledProgram, Explanation, ValueOrigin
from shardtui.engine.explain.names import kept_names

FLOAT = 4
"""Bytes of a float32."""
Layout = tuple[tuple[int, ...], P]
"""Shape and spec of an argument."""
ROWS, COLUMNS = ((8, 16), P("data")), ((16, 32), P(None, "model"))


def arguments(*layouts: Layout) -> list[jax.ShapeDtypeStruct]:
    mesh = jax.sharding.get_mesh()
    return [jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec)) for shape, spec in layouts]


def lower(function: Callable[..., Any], *layouts: Layout) -> jax.stages.Lowered:
    with kept_names():
        return jax.jit(function).lower(*arguments(*layouts))


def explained(function: Callable[..., Any], *layouts: Layout) -> Explanation:
    return explain(lower(function, *layouts).compiler_ir("stablehlo"), "test")


def compiled(lowered: jax.stages.Lowered, found: Explanation) -> CompiledProgram:
    program = with_compiled(lowered, found, "cpu").compiled
    assert program is not None
    return program


def value(found: Explanation, name: str) -> ValueOrigin:
    return next(value for value in found.values if value.name == name)
