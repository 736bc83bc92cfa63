"""What TPU and GPU compilers make of the sums of a partitioned program."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.partitioned import partition
from shardtui.engine.explain.reductions import Reductions
from shardtui.engine.explain.transfers import read_transfers
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.program.program import COMPILER_OPTIONS
from shardtui.engine.spec.topology import load_topology

TOKENS, WIDTH, HIDDEN = 512, 512, 1024


def mesh_of_eight() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def kinds(
    function: Callable[..., Any],
    specs: dict[str, tuple[tuple[int, ...], P]],
    out: P,
    slice_: str,
    dtype: Any = jnp.float32,
) -> list[tuple[str, tuple[str, ...], int]]:
    """The collectives of a function on a slice, each with its axes and bytes."""
    mesh = mesh_of_eight()
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, spec in specs.values()]
    lowered = jax.jit(function, out_shardings=NamedSharding(mesh, out)).lower(*given)
    program = partition(lowered.compiler_ir("stablehlo"))
    with program.module.context:
        found = read_transfers(program, Reductions(program, load_topology(slice_)))
        return [(each.kind, tuple(each.axes), each.bytes_each) for each in found]


X, DOWN, UP = ((TOKENS, HIDDEN), P("data", "model")), ((HIDDEN, WIDTH), P("model")), ((HIDDEN, WIDTH), P("model"))
PART, WHOLE = P("data", "model"), P("data", None)
SUM = TOKENS // 4 * WIDTH * 4
"""Bytes of a device's rows of a product."""


def test_a_sum_of_which_each_device_takes_a_part_is_scattered() -> None:
    given = {"x": X, "w": DOWN}
    assert kinds(jnp.matmul, given, PART, "v5e:2x4") == [("reduce-scatter", ("model",), SUM)]
    assert kinds(jnp.matmul, given, WHOLE, "v5e:2x4") == [("all-reduce", ("model",), SUM)]
    assert kinds(lambda x, w: (x @ w) * 2 + 1, given, PART, "h100:1x8") == [("reduce-scatter", ("model",), SUM)]


def test_sums_are_added_before_they_are_reduced() -> None:
    given = {"x": X, "one": DOWN, "other": UP}
    assert kinds(lambda x, a, b: x @ a + x @ b, given, PART, "v5e:2x4") == [("reduce-scatter", ("model",), SUM)]
    assert kinds(lambda x, a, b: x @ a + x @ b, given, WHOLE, "v5e:2x4") == [("all-reduce", ("model",), SUM)]
    several = kinds(lambda x, a, b: x @ a + jnp.tanh(x @ b), given, WHOLE, "v5e:2x4")
    assert several == 2 * [("all-reduce", ("model",), SUM)]


def test_a_part_that_is_gathered_again_is_added_whole() -> None:
    mesh = mesh_of_eight()

    def residual(x: jax.Array, w: jax.Array, stream: jax.Array) -> jax.Array:
        stream = jax.lax.with_sharding_constraint(stream + x @ w, NamedSharding(mesh, PART))
        return jnp.sin(jax.lax.with_sharding_constraint(stream, NamedSharding(mesh, WHOLE)))

    found = kinds(residual, {"x": X, "w": DOWN, "stream": ((TOKENS, WIDTH), PART)}, WHOLE, "v5e:2x4")
    assert sorted(found) == [("all-gather", ("model",), SUM), ("all-reduce", ("model",), SUM)]


def test_what_no_all_reduce_computes_is_gathered() -> None:
    found = kinds(lambda x: jnp.argmax(x, axis=1), {"x": X}, P("data"), "v5e:2x4")
    assert {kind for kind, *_ in found} == {"all-gather"}


def test_what_is_summed_over_more_axes_than_split_it_is_scattered_and_then_summed() -> None:
    def gradient(x: jax.Array, g: jax.Array) -> jax.Array:
        return x.T @ g

    given = {"x": ((TOKENS, HIDDEN), P(("data", "model"))), "g": ((TOKENS, WIDTH), P(("data", "model")))}
    whole = HIDDEN * WIDTH * 4
    found = kinds(gradient, given, P("data"), "v5e:2x4")
    assert found == [("reduce-scatter", ("data",), whole), ("all-reduce", ("model",), whole // 4)]
    assert kinds(gradient, given, P(("data", "model")), "v5e:2x4") == [("reduce-scatter", ("data", "model"), whole)]
    assert kinds(gradient, given, P(("data", "model")), "v5p:2x2x2") == [("all-reduce", ("data", "model"), whole)]


WHOLE_SLICES = (
    "v5e:2x2",
    "v5e:2x4",
    "v5e:4x4",
    "v5e:8x16",
    "v6e:16x16",
    "v4:2x2x1",
    "v4:2x2x2",
    "v5p:2x2x4",
    "tpu7x:2x2x1",
)
ROWS = (64, 96, 128, 256, 384)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("name", WHOLE_SLICES)
def test_the_tpu_compiler_scatters_over_a_whole_slice_where_it_is_said_to(name: str) -> None:
    for dim in (0, 1):
        assert compiled_alike(name, None, 256, dim, jnp.bfloat16)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rows", ROWS)
def test_the_tpu_compiler_scatters_the_parts_that_it_is_said_to(rows: int, dim: int, dtype: Any) -> None:
    assert compiled_alike("v5p:4x4x4", 16, rows, dim, dtype)


def compiled_alike(name: str, count: int | None, rows: int, dim: int, dtype: Any) -> bool:
    """Whether the compiler sums the gradient of a product as it is said to: over `count` devices of a slice, the last
    ones of its mesh, each of which keeps so many rows or columns."""
    slice_ = load_topology(name)
    count = count or slice_.devices
    rest = slice_.devices // count
    shape = [2048 * rest, 2048 * rest]
    shape[dim] = rows * count
    dims = [("b", "a")[each == dim] if each == dim or rest > 1 else None for each in (0, 1)]

    def gradient(x: jax.Array, g: jax.Array) -> jax.Array:
        return jnp.einsum("ta,tb->ab", x, g).astype(jnp.float32)

    def lowered(devices: Any) -> Any:
        mesh = Mesh(np.array(devices).reshape(rest, count), ("b", "a"))
        given = [
            jax.ShapeDtypeStruct(
                (256 * count, size), dtype, sharding=NamedSharding(mesh, P("a", None if axis == "a" else axis))
            )
            for size, axis in zip(shape, dims, strict=True)
        ]
        return jax.jit(gradient, out_shardings=NamedSharding(mesh, P(*dims))).lower(*given)

    program = partition(lowered(find_slice(slice_)).compiler_ir("stablehlo"))
    with program.module.context:
        (found,) = (each.kind for each in read_transfers(program, Reductions(program, slice_)))
    text = lowered(find_slice(slice_)).compile(compiler_options=COMPILER_OPTIONS["tpu"]).as_text()
    is_scattered = bool(re.search(r" reduce-scatter\(|calls=%all-reduce-scatter", text))
    return (found == "reduce-scatter") == is_scattered
