"""What TPU and GPU compilers make of the sums of a partitioned program."""

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.partitioned import partition
from shardtui.engine.explain.reductions import Reductions
from shardtui.engine.explain.transfers import read_transfers
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.program.program import COMPILER_OPTIONS
from shardtui.engine.spec.topology import load_topology

from .small_programs import Layout, arguments

TOKENS, WIDTH, HIDDEN, BOTH = 512, 512, 1024, ("data", "model")
X, W, STREAM = ((TOKENS, HIDDEN), P(*BOTH)), ((HIDDEN, WIDTH), P("model")), ((TOKENS, WIDTH), P(*BOTH))
TOKENS_SPLIT = [((TOKENS, HIDDEN), P(BOTH)), ((TOKENS, WIDTH), P(BOTH))]
PART, WHOLE = P(*BOTH), P("data", None)
SUM, GRADIENT = TOKENS // 4 * WIDTH * 4, HIDDEN * WIDTH * 4
"""Bytes of a device's rows of a product, and of the gradient of weights."""
SCATTERED, REDUCED = ("reduce-scatter", ("model",), SUM), ("all-reduce", ("model",), SUM)


def collectives(
    function: Callable[..., Any], layouts: list[Layout], out: P | None, name: str, **spans: int
) -> list[tuple[str, tuple[str, ...], int | None]]:
    """The collectives of a function on slices, each with its axes and bytes. `spans`: how many slices an axis spans."""
    out_sharding = out and NamedSharding(jax.sharding.get_mesh(), out)  # type: ignore[arg-type]
    lowered = jax.jit(function, out_shardings=out_sharding).lower(*arguments(*layouts))
    program = partition(lowered.compiler_ir("stablehlo"))
    with program.module.context:
        found = read_transfers(program, Reductions(program, load_topology(name), spans))
        return sorted((each.kind, tuple(each.axes), each.bytes_each) for each in found)


def added(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return x @ a + x @ b


def added_often(x: jax.Array, g: jax.Array) -> jax.Array:
    total = x.T @ g
    for _ in range(500):
        total += x.T @ (g := -g)
    return total


def gradient_of(x: jax.Array, g: jax.Array) -> jax.Array:
    return x.T @ g


@pytest.mark.slow
@pytest.mark.usefixtures("mesh")
def test_a_sum_of_many_sums_is_one() -> None:
    layouts = [((8, 16), P("data")), ((8, 32), P("data"))]
    assert collectives(added_often, layouts, None, "v5e:2x4") == [("all-reduce", ("data",), 16 * 32 * 4)]


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize(
    ("function", "layouts", "out", "name", "found"),
    [
        (jnp.matmul, [X, W], PART, "v5e:2x4", [SCATTERED]),
        (jnp.matmul, [X, W], WHOLE, "v5e:2x4", [REDUCED]),
        (lambda x, w: (x @ w) * 2 + 1, [X, W], PART, "h100:1x8", [SCATTERED]),
        (added, [X, W, W], PART, "v5e:2x4", [SCATTERED]),
        (added, [X, W, W], WHOLE, "v5e:2x4", [REDUCED]),
        (lambda x, a, b: x @ a + jnp.tanh(x @ b), [X, W, W], WHOLE, "v5e:2x4", [REDUCED, REDUCED]),
        (
            *(gradient_of, TOKENS_SPLIT, P("data"), "v5e:2x4"),
            [("all-reduce", ("model",), GRADIENT // 4), ("reduce-scatter", ("data",), GRADIENT)],
        ),
        (gradient_of, TOKENS_SPLIT, P(BOTH), "v5e:2x4", [("reduce-scatter", BOTH, GRADIENT)]),
        (gradient_of, TOKENS_SPLIT, P(BOTH), "v5p:2x2x2", [("all-reduce", BOTH, GRADIENT)]),
    ],
)
def test_sums_are_added_and_scattered_where_each_device_takes_a_part(
    function: Callable[..., Any], layouts: list[Layout], out: P, name: str, found: list[Any]
) -> None:
    assert collectives(function, layouts, out, name) == found


@pytest.mark.usefixtures("mesh")
def test_sums_across_slices_and_inside_them_are_not_scattered() -> None:
    alone = partial(collectives, gradient_of, TOKENS_SPLIT, P(BOTH), "2*v5e:2x2")
    assert alone(data=2) == [("all-reduce", BOTH, GRADIENT)]
    across = collectives(gradient_of, TOKENS_SPLIT, P("data"), "4*v5e:2x1", data=4)
    assert across == [("all-reduce", ("model",), GRADIENT // 4), ("reduce-scatter", ("data",), GRADIENT)]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("name", ["2*v5e:2x2", "4*v5e:2x4", "2*v5p:2x2x2", "2*v6e:4x4"])
def test_the_tpu_compiler_gathers_what_it_sums_across_slices(name: str) -> None:
    """Inside the slices it scatters, across them it sums the parts, and inside them it gathers all again."""
    slice_ = load_topology(name)
    mesh = Mesh(np.array(find_slice(slice_)).reshape(2 * slice_.slices, -1), BOTH)
    with jax.set_mesh(mesh):
        shapes = arguments(*[(shape, P("data")) for shape, _ in TOKENS_SPLIT])
        lowered = jax.jit(gradient_of, out_shardings=NamedSharding(mesh, P("data"))).lower(*shapes)
        text = lowered.compile(compiler_options=COMPILER_OPTIONS["tpu"]).as_text()
    found = {(info.kind, info.group_size) for info in inventory(parse(text), dict(mesh.shape))}
    sums = {("reduce-scatter", 2), ("all-reduce", slice_.slices), ("all-gather", 2)}
    assert found - {("collective-permute", 2)} == sums


def split(value: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(value, PART)


def gathered(value: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(value, WHOLE)


def added_in_parts(x: jax.Array, w: jax.Array, stream: jax.Array) -> jax.Array:
    return gathered(split(stream + x @ w))


def added_whole(x: jax.Array, w: jax.Array, stream: jax.Array) -> jax.Array:
    return gathered(stream + x @ w)


def added_whole_for_parts(x: jax.Array, w: jax.Array, stream: jax.Array) -> jax.Array:
    return split(gathered(gathered(stream) + gathered(x @ w)))


def added_for_both(x: jax.Array, w: jax.Array, stream: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As a residual stream, whole for the next sum and in parts for its norm."""
    stream = gathered(stream + x @ w)
    return stream, split(jnp.tanh(split(stream)))


IN_PARTS, SUMMED = {"all-gather", "reduce-scatter"}, {"all-gather", "all-reduce"}
STREAMS = [
    *((added_in_parts, name, IN_PARTS) for name in ("v5e:2x4", "h100:1x8")),
    *((added_whole, name, SUMMED) for name in ("v5e:2x4", "h100:1x8")),
    *((added_for_both, name, SUMMED) for name in ("v5e:2x4", "h100:1x8")),
    (added_whole_for_parts, "v5e:2x4", IN_PARTS),
    (added_whole_for_parts, "h100:1x8", SUMMED),
]


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize(("function", "name", "kinds"), STREAMS)
def test_operands_move_to_the_layout_of_their_sum(function: Any, name: str, kinds: set[str]) -> None:
    assert {kind for kind, *_ in collectives(function, [X, W, STREAM], None, name)} == kinds


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize(("function", "name", "kinds"), STREAMS)
def test_compilers_move_operands_as_they_are_said_to(function: Any, name: str, kinds: set[str]) -> None:
    slice_ = load_topology(name)
    mesh = Mesh(np.array(find_slice(slice_)).reshape(4, 2), BOTH)
    with jax.set_mesh(mesh):
        lowered = jax.jit(function).lower(*arguments(X, W, STREAM))
        text = lowered.compile(compiler_options=COMPILER_OPTIONS.get(slice_.platform)).as_text()
    assert {info.kind for info in inventory(parse(text), dict(mesh.shape))} == kinds


@pytest.mark.usefixtures("mesh")
def test_what_no_all_reduce_computes_is_gathered() -> None:
    found = collectives(lambda x: jnp.argmax(x, axis=1), [X], P("data"), "v5e:2x4")
    assert {kind for kind, *_ in found} == {"all-gather"}


WHOLE_SLICES = ("v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:8x16", "v6e:16x16", "v4:2x2x1", "v4:2x2x2", "v5p:2x2x4")
OF_WHOLE_SLICES = [(name, None, 256, jnp.bfloat16) for name in (*WHOLE_SLICES, "tpu7x:2x2x1")]
OF_PARTS = [("v5p:4x4x4", 16, rows, dtype) for rows in (64, 96, 128, 256, 384) for dtype in (jnp.bfloat16, jnp.float32)]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("name", "count", "rows", "dtype"), [*OF_WHOLE_SLICES, *OF_PARTS])
def test_the_tpu_compiler_scatters_where_it_is_said_to(
    name: str, count: int | None, rows: int, dtype: Any, dim: int
) -> None:
    """Of the gradient of a product each of the last `count` devices of a mesh keeps so many rows or columns."""
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
    assert (found == "reduce-scatter") == is_scattered


RINGS, FLAT = (2048, 2048), (1280, 3, 20, 64)
GATHERS = [
    ("v5p:4x4x4", RINGS, "all-gather"),
    ("2*v5p:4x4x4", RINGS, "all-reduce"),
    ("4*v5p:4x4x8", RINGS, "all-reduce"),
    ("2*v5p:2x4x4", RINGS, "all-gather"),
    ("2*tpu7x:4x4x4", RINGS, "all-reduce"),
    ("v5e:16x16", (2048, 4096), "all-reduce"),
    ("v5e:16x16", (2048, 4224), "all-gather"),
    ("v5e:8x8", FLAT, "all-gather"),  # 64 along the lanes and 20 rows are padded
    ("v5e:8x8", (1280, 3, 16, 64), "all-reduce"),
    ("v5e:4x8", RINGS, "all-gather"),
    ("2*v6e:8x16", RINGS, "all-reduce"),
    ("v6e:16x16", RINGS, "all-gather"),
]


def gathering(mesh: Mesh | AbstractMesh, shape: tuple[int, ...]) -> jax.stages.Traced:
    """A product with weights that each slice splits along their first dim."""

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tensordot(x, w, 1)

    rows = NamedSharding(mesh, P(("slices", "devices")))
    x = jax.ShapeDtypeStruct((512 * mesh.size, shape[0]), jnp.bfloat16, sharding=rows)
    w = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P("devices")))
    return jax.jit(product, out_shardings=rows).trace(x, w)


@pytest.mark.parametrize(("name", "shape", "kind"), GATHERS)
def test_gathers_over_whole_slices_may_be_sums(name: str, shape: tuple[int, ...], kind: str) -> None:
    slice_ = load_topology(name)
    mesh = AbstractMesh((slice_.slices, slice_.devices // slice_.slices), ("slices", "devices"))
    program = partition(gathering(mesh, shape).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo"))
    with program.module.context:
        found = [(each.kind, each.axes) for each in read_transfers(program, Reductions(program, slice_))]
    assert found == [(kind, ["devices"])]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize(("name", "shape", "kind"), GATHERS)
def test_the_tpu_compiler_gathers_as_it_is_said_to(name: str, shape: tuple[int, ...], kind: str) -> None:
    slice_ = load_topology(name)
    mesh = Mesh(np.array(find_slice(slice_)).reshape(slice_.slices, -1), ("slices", "devices"))
    text = gathering(mesh, shape).lower().compile(compiler_options=COMPILER_OPTIONS["tpu"]).as_text()
    assert set(re.findall(r" (all-\w+|reduce-scatter)(?:-start)?\(", text)) == {kind}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize(("name", "count"), [("v5e:2x4", 1), ("tpu7x:2x2x1", 1), ("h100:1x8", 2)])
def test_compilers_merge_gathers_in_two_orders_as_they_are_said_to(name: str, count: int) -> None:
    slice_ = load_topology(name)
    mesh = Mesh(np.array(find_slice(slice_)), ("data",))
    rows = NamedSharding(mesh, P("data"))

    def there_and_back(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w.T

    x, w = (jax.ShapeDtypeStruct((size, FEATURES), jnp.bfloat16, sharding=rows) for size in (4096, FEATURES))
    lowered = jax.jit(there_and_back, out_shardings=rows).lower(x, w)
    program = partition(lowered.compiler_ir("stablehlo"))
    with program.module.context:
        found = [each.bytes_each for each in read_transfers(program, Reductions(program, slice_))]
    assert found == [FEATURES * FEATURES * 2] * count
    text = lowered.compile(compiler_options=COMPILER_OPTIONS.get(slice_.platform)).as_text()
    assert sum(each.bytes_each for each in inventory(parse(text or ""), {"data": mesh.size})) == sum(found)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("length", [1024, 131_072])
@pytest.mark.parametrize("name", ["v5e:2x4", "tpu7x:2x2x1"])
def test_the_tpu_compiler_gathers_sums_of_blocks_for_sums_up_to_each_element(name: str, length: int) -> None:
    slice_ = load_topology(name)
    mesh = Mesh(np.array(find_slice(slice_)), ("data",))
    rows = NamedSharding(mesh, P("data"))
    routed = jax.ShapeDtypeStruct((length, 64), jnp.float32, sharding=rows)
    lowered = jax.jit(lambda x: jnp.cumsum(x, 0), out_shardings=rows).lower(routed)
    program = partition(lowered.compiler_ir("stablehlo"))
    with program.module.context:
        found = [(each.kind, each.bytes_each) for each in read_transfers(program, Reductions(program, slice_))]
    assert found == [("all-gather", 8 * 64 * 4)], "of 8 blocks of 128, or of 128 blocks of 128"
    text = lowered.compile(compiler_options=COMPILER_OPTIONS["tpu"]).as_text()
    made = [(each.kind, each.bytes_each) for each in inventory(parse(text or ""), {"data": mesh.size})]
    assert [each for each in made if each[0] != "collective-permute"] == found


ROWS, FEATURES = 8192, 1024


def embedding(mesh: Mesh, has_momentum: bool) -> jax.stages.Lowered:
    """The gradient of a table that `data` splits along its rows, from lookups, and of weights, in float32. With
    momentum, the gradient of the table is added to another array."""

    def loss(table: jax.Array, w: jax.Array, tokens: jax.Array) -> jax.Array:
        x = table[tokens]
        return jnp.sum(jnp.tanh(x + x @ w) ** 2)

    def step(table: jax.Array, momentum: jax.Array, w: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient, its = jax.grad(loss, argnums=(0, 1))(table, w, tokens)
        return 0.9 * momentum + gradient if has_momentum else gradient, its

    def split(shape: tuple[int, ...], dtype: Any, *spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    table, w = split((ROWS, FEATURES), jnp.float32, "data"), split((FEATURES, FEATURES), jnp.float32, "data")
    jitted = jax.jit(step, out_shardings=(table.sharding, w.sharding))
    return jitted.lower(table, table, w, split((16 * mesh.size, 64), jnp.int32, "data"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("has_momentum", [False, True])
@pytest.mark.parametrize("name", ["v5e:2x4", "v6e:2x4"])
def test_the_tpu_compiler_gathers_tables_and_moves_weights_as_bfloat16(name: str, has_momentum: bool) -> None:
    slice_ = load_topology(name)
    mesh = Mesh(np.array(find_slice(slice_)), ("data",))
    lowered = embedding(mesh, has_momentum)
    program = partition(lowered.compiler_ir("stablehlo"))
    with program.module.context:
        found = sorted((each.kind, each.bytes_each) for each in read_transfers(program, Reductions(program, slice_)))
    compiled = lowered.compile(compiler_options=COMPILER_OPTIONS["tpu"])
    made = inventory(parse(compiled.as_text() or ""), {"data": mesh.size})
    assert found.count(("all-gather", ROWS * FEATURES * 4)) == (2 if has_momentum else 1)
    assert ("all-gather", FEATURES * FEATURES * 2) in found
    assert found == sorted((each.kind, each.bytes_each) for each in made)
