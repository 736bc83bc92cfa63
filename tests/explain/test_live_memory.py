"""The peak of small programs, to the byte, each with what follows from its code by hand."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.live_memory import LiveMemory
from shardtui.engine.explain.live_peak import live_peak
from shardtui.engine.explain.partitioned import partition
from shardtui.engine.explain.resized import Batch, resized
from shardtui.engine.explain.work import Products

from .small_programs import FLOAT, Layout, arguments

pytestmark = pytest.mark.usefixtures("mesh")
BFLOAT = 2
ROWS, WIDTH = 64, 128
X, W = ((ROWS, WIDTH), P("data")), ((WIDTH, WIDTH), P())
PART = ROWS // 4 * WIDTH * FLOAT
"""Bytes of a device's rows."""
LAYERS = 6
STACKED = ((LAYERS, WIDTH, WIDTH), P())


def live(function: Callable[..., Any], *layouts: Layout, is_tpu: bool = False, **options: Any) -> LiveMemory:
    traced = jax.jit(function, **options).trace(*arguments(*layouts))
    lowered = traced.lower(lowering_platforms=("tpu",) if is_tpu else None)
    program = partition(lowered.compiler_ir("stablehlo"))
    with program.module.context:
        return LiveMemory(program, "tpu" if is_tpu else "gpu")


def peak(function: Callable[..., Any], *layouts: Layout, is_tpu: bool = False) -> int:
    return max(live(function, *layouts, is_tpu=is_tpu).held)


def test_values_are_held_until_they_are_read_for_the_last_time() -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(5):
            x = x @ w
        return x

    found = live(chain, X, W)
    assert max(found.held) == 3 * PART, "two products, and the place of the result"
    assert found.moved == 5 * (2 * PART + WIDTH * WIDTH * FLOAT), "x, w and the product"

    def kept(x: jax.Array, w: jax.Array) -> jax.Array:
        one = x @ w
        two = one @ w
        three = two @ w
        return one + three

    assert peak(kept, X, W) == 3 * PART

    def elementwise(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jnp.tanh(x) * 2 + 1
        return jnp.exp(y.T @ w[:ROWS] - 3)

    assert peak(elementwise, ((ROWS, WIDTH), P()), W) == WIDTH * WIDTH * FLOAT

    def terms(x: jax.Array, w: jax.Array) -> jax.Array:
        total = sum((x @ (w * number) for number in range(4)), jnp.zeros_like(x))
        return (total @ w) + (total @ (2 * w))

    assert peak(terms, X, W) == 5 * PART, "the last of the terms gives its memory to the sum; and the result's place"


def test_a_product_of_no_batches_takes_no_flops() -> None:
    program = live(lambda x, w: jnp.einsum("bij,bjk->bik", x, w), ((0, 8, 16), P()), ((0, 16, 32), P())).program
    with program.module.context:
        assert Products(program, {}, 1.0).flops(program) == 0


def test_the_zeros_between_elements_take_no_flops() -> None:
    def spread(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_transpose(x, w, (2, 2), "SAME")

    program = live(spread, ((8, 4, 4, 3), P()), ((2, 2, 3, 5), P())).program
    with program.module.context:
        assert Products(program, {}, 1.0).flops(program) == 2 * (8 * 8 * 8 * 5) * (2 * 2 * 3) / 4


def test_a_program_of_many_operations_in_a_row_has_other_sizes() -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(300):
            x = jnp.tanh(x @ w)
        return (x @ w[:, :1]).astype("bfloat16")

    found = live(chain, ((512, 16), P("data")), ((16, 16), P()))
    program = resized(found.program, {"data": 8, "model": 1}, Batch(1009, Fraction(1)))
    with program.module.context:
        assert max(found.resized(program).held) * 2 == max(found.held)


def test_values_of_the_forward_pass_are_told_from_those_of_the_backward_pass() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ w) @ w).sum()

    part, kernel = 16 * PART, WIDTH * WIDTH * FLOAT
    found = live(jax.grad(loss), W, ((16 * ROWS, WIDTH), P("data"))).at_peak
    assert [buffer.bytes for buffer in found if not buffer.is_backward] == [part, part], "both products"
    gradients = [buffer.bytes for buffer in found if buffer.is_backward]
    assert gradients == [kernel, part, kernel], "the result's place, the gradient of the first one's, and one of w"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loop_keeps_what_it_saves_and_a_narrower_copy_of_its_kernels(dtype: str) -> None:
    """A scan keeps no copy of the kernels that it takes slices of, unless it converts them."""

    def scanned(x: jax.Array, kernels: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = (x.astype(dtype) @ kernel.astype(dtype)).astype("float32")
            return x, x

        return jax.lax.scan(body, x, kernels)

    found = live(scanned, X, STACKED)
    copy = LAYERS * WIDTH * WIDTH * BFLOAT if dtype == "bfloat16" else 0
    product = PART * (BFLOAT if dtype == "bfloat16" else FLOAT) // FLOAT
    assert max(found.held) == LAYERS * PART + copy + PART + product + FLOAT, (
        "saved, copied, carried, computed and counted"
    )


def test_loops_gathers_and_parts_of_a_shard_map_are_counted_and_padded_on_a_tpu() -> None:
    def looped(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, x: x @ w, x)

    assert live(looped, X, W).moved == 7 * (2 * PART + WIDTH * WIDTH * FLOAT)
    split = ((WIDTH, WIDTH), P("data"))
    assert peak(lambda x, w: x @ w, X, split) == WIDTH * WIDTH * FLOAT + PART

    def mapped(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.shard_map(lambda x, w: (x @ w) @ w, in_specs=(P("data"), P()), out_specs=P("data"))(x, w)

    assert peak(mapped, X, W) == 2 * PART

    def product(x: jax.Array, kernels: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(x, kernels, jnp.full(LAYERS, 2))

    def total(x: jax.Array, kernels: jax.Array) -> jax.Array:
        return jax.shard_map(product, in_specs=(P("data"), P()), out_specs=P("data"))(x, kernels).sum()

    assert peak(total, X, STACKED, is_tpu=True) == PART + 2 * FLOAT, "not one for the kernel of each group"
    narrow = ((ROWS, WIDTH), P()), ((WIDTH, 100), P())
    assert peak(lambda x, w: x @ w, *narrow) == ROWS * 100 * FLOAT
    assert peak(lambda x, w: x @ w, *narrow, is_tpu=True) == ROWS * 128 * FLOAT, "of 64 × 100"


def test_the_largest_buffers_say_what_they_are() -> None:
    def step(x: jax.Array, kernels: jax.Array) -> jax.Array:
        def body(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
            return (x.astype("bfloat16") @ kernel.astype("bfloat16")).astype("float32"), None

        return jax.lax.scan(body, x, kernels)[0]

    found = live(step, X, STACKED)
    with found.program.module.context:
        memory, buffers = live_peak(found, ["x", "kernels"])
    sizes = {buffer.layout: (buffer.kind, buffer.name, buffer.bytes, buffer.padding) for buffer in buffers}
    kernels = LAYERS * WIDTH * WIDTH
    assert sizes["f32[6,128,128]"] == ("argument", "kernels", kernels * FLOAT, 0)
    assert sizes["bf16[6,128,128]"] == ("temporary", "", kernels * BFLOAT, 0), "converted before the loop"
    assert sizes["s32[]"] == ("temporary", "", 4, 0), "the loop's counter"
    assert memory.bytes == sum(buffer.bytes for buffer in buffers) == max(memory.curve)
    copy = next(buffer for buffer in buffers if buffer.layout == "bf16[6,128,128]")
    assert copy.source == f"{__file__}:{step.__code__.co_firstlineno + 2}"
    assert (copy.begin, copy.end) == (pytest.approx(0.2, abs=0.2), pytest.approx(0.8, abs=0.2))


def test_what_a_kernel_takes_and_returns_has_the_rows_of_its_last_dim() -> None:
    """64 of 128 lanes are padding, also where a loop keeps it; without a kernel the other dim lies along the lanes."""
    half, narrow = WIDTH // 2, ((WIDTH, WIDTH // 2), P())

    def doubled(given: Any, made: Any) -> None:
        made[...] = given[...] * 2

    def step(x: jax.Array, w: jax.Array, kernel: bool) -> jax.Array:
        def body(carried: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            y = carried @ w
            called = pl.pallas_call(doubled, out_shape=jax.ShapeDtypeStruct(y.shape, y.dtype))
            split = jax.shard_map(called, in_specs=P(), out_specs=P(), check_vma=False)
            return carried + 1, split(y) if kernel else jnp.sin(y)

        return jnp.sum(jax.lax.scan(body, x, length=LAYERS)[1], axis=0) @ w.T

    rows = ((WIDTH, WIDTH), P())
    kept = LAYERS * WIDTH * half * FLOAT
    with_kernel, without = (peak(partial(step, kernel=kernel), rows, narrow, is_tpu=True) for kernel in (True, False))
    square = WIDTH * WIDTH * FLOAT
    assert with_kernel == 2 * kept + 4 * square + FLOAT, "what the loop carries, both products and the result's place"
    assert without == kept + 2 * square + square // 2 + FLOAT


def test_results_are_held_unless_they_take_the_place_of_what_is_donated() -> None:
    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return x, w - 1, jnp.sum(x @ w, axis=0)

    whole, row = WIDTH * WIDTH * FLOAT, WIDTH * FLOAT
    kept = live(step, X, W)
    assert kept.held[-2] == PART + whole + row, "a copy of x, the new w, and the sum"
    assert [each.kind for each in live_peak(kept, ["x", "w"]).buffers].count("output") == 2
    assert live(step, X, W, donate_argnums=1).held[-2] == PART + row
    assert live(step, X, W, donate_argnums=(0, 1)).held[-2] == row


def test_what_is_looked_up_is_in_memory_and_single_gradients_are_not_scattered() -> None:
    """`take_along_axis` of a loss: a converted operand is written for it, and the TPU compares indices for its
    gradient."""

    def sizes(function: Callable[..., Any], is_tpu: bool) -> dict[str, int]:
        return {buffer.op.name: buffer.bytes for buffer in live(function, X, W, is_tpu=is_tpu).buffers}

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        logits = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
        return jnp.take_along_axis(logits, jnp.argmax(x, axis=1, keepdims=True), 1).sum() + logits.sum()

    def gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.grad(loss)(w, x)

    assert sizes(lambda x, w: loss(w, x), is_tpu=True)["stablehlo.convert"] == PART
    assert sizes(gradient, is_tpu=False)["stablehlo.scatter"] == PART
    assert "stablehlo.scatter" not in sizes(gradient, is_tpu=True)
