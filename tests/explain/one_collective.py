"""Programs of one collective each over data = 4 × model = 2: by the partitioner, and called in a `shard_map`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.compiled import with_compiled
from shardtui.engine.explain.explanation import CompiledProgram, Explanation

ROWS, COLUMNS, OUT = 64, 32, 128
X, BOTH = (ROWS, COLUMNS), ("data", "model")
FLOAT = 4
"""Bytes of a float32."""
Layout = tuple[tuple[int, ...], P]


@dataclass(frozen=True)
class Program:
    """A program with one collective."""

    name: str
    function: Callable[..., Any]
    layouts: tuple[Layout, ...]
    """Shape and spec of each argument, float32."""
    kind: str
    axes: tuple[str, ...]
    bytes: int
    """Bytes on one device, as `inspect` counts them: of what is reduced, of what is gathered, of what moves."""

    def lower(self) -> jax.stages.Lowered:
        """Lowers the program for the mesh that is set."""
        return jax.jit(self.function).lower(*arguments(*self.layouts))


def arguments(*layouts: Layout) -> list[jax.ShapeDtypeStruct]:
    """Abstract arrays, float32, on the mesh that is set."""
    mesh = jax.sharding.get_mesh()
    return [jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec)) for shape, spec in layouts]


def compiled(lowered: jax.stages.Lowered, found: Explanation) -> CompiledProgram:
    program = with_compiled(lowered, found).compiled
    assert program is not None
    return program


def asked(*spec: Any) -> Callable[[jax.Array], jax.Array]:
    """A program that constrains its argument."""
    return lambda x: jax.lax.with_sharding_constraint(x, P(*spec))


def mapped(body: Callable[[jax.Array], jax.Array], into: P, out: P) -> Callable[[jax.Array], jax.Array]:
    """A program that is one `shard_map`."""
    return jax.shard_map(body, in_specs=into, out_specs=out, check_vma=False)


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def looked_up(table: jax.Array) -> jax.Array:
    """An embedding: rows of a table whose rows are split."""
    return table[jax.numpy.arange(16) * 3]


PART = ROWS * COLUMNS * FLOAT // 8
PROGRAMS = (
    Program(
        "product that sums over a split dim",
        product,
        ((X, P(None, "model")), ((COLUMNS, OUT), P("model"))),
        "all-reduce",
        ("model",),
        ROWS * OUT * FLOAT,
    ),
    Program("reduction of a split dim", lambda x: x.sum(axis=0), ((X, P(BOTH)),), "all-reduce", BOTH, COLUMNS * FLOAT),
    Program(
        "maximum of a split dim", lambda x: x.max(axis=0), ((X, P("data")),), "all-reduce", ("data",), COLUMNS * FLOAT
    ),
    Program(
        "embedding of a split table",
        looked_up,
        (((128, COLUMNS), P("model")),),
        "all-reduce",
        ("model",),
        16 * COLUMNS * FLOAT,
    ),
    Program("constraint to whole", asked(), ((X, P("model")),), "all-gather", ("model",), ROWS * COLUMNS * FLOAT),
    Program("constraint to whole, of a pair", asked(), ((X, P(BOTH)),), "all-gather", BOTH, ROWS * COLUMNS * FLOAT),
    Program("constraint to the other dim", asked(None, "data"), ((X, P("data")),), "all-to-all", ("data",), PART * 2),
    Program("constraint to the other dim, of a pair", asked(None, BOTH), ((X, P(BOTH)),), "all-to-all", BOTH, PART),
    Program("constraint to another order", asked(("model", "data")), ((X, P(BOTH)),), "collective-permute", BOTH, PART),
    Program(
        "psum_scatter",
        mapped(lambda x: jax.lax.psum_scatter(x, BOTH, tiled=True), P(None, None), P(BOTH)),
        ((X, P()),),
        "reduce-scatter",
        BOTH,
        ROWS * COLUMNS * FLOAT,
    ),
    Program(
        "all_to_all",
        mapped(lambda x: jax.lax.all_to_all(x, BOTH, 1, 0, tiled=True), P(BOTH), P(None, BOTH)),
        ((X, P(BOTH)),),
        "all-to-all",
        BOTH,
        PART,
    ),
    Program(
        "ppermute",
        mapped(lambda x: jax.lax.ppermute(x, BOTH, [(i, (i + 1) % 8) for i in range(8)]), P(BOTH), P(BOTH)),
        ((X, P(BOTH)),),
        "collective-permute",
        BOTH,
        PART,
    ),
)
