"""Traffic that Shardy's passes do not insert: estimated as the compiler has it, or said to be unknown."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import UNKNOWN, by_flow

from ..explained_programs import PROGRAMS, answer, library_answer, random_answer
from .small_programs import FLOAT, arguments, explained

ROWS = ((24, 24), P("data"))
ROW = 24 * FLOAT
PERMUTE, GATHER, REDUCE = ((kind, ("data",)) for kind in ("collective-permute", "all-gather", "all-reduce"))
PART = 24 // 4
FORM = ("NWC", "WIO", "NWC")


def windows(x: jax.Array, size: int) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (size, 1), (1, 1), ((size - 1, 0), (0, 0)))


def convolved(x: jax.Array) -> jax.Array:
    kernel = jnp.ones((4, 1, 24))
    return lax.conv_general_dilated(x[None], kernel, (1,), [(3, 0)], dimension_numbers=FORM, feature_group_count=24)[0]


def grouped(x: jax.Array) -> jax.Array:
    x, kernel = x.reshape(24, 6, 4), jnp.ones((3, 2, 4))
    return lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=FORM, feature_group_count=2)


EXCHANGES: dict[str, tuple[Callable[[jax.Array], jax.Array], dict[Any, int]]] = {
    "roll": (lambda x: jnp.roll(x, 1, 0), {PERMUTE: ROW}),
    "reverse": (lambda x: lax.rev(x, (0,)), {PERMUTE: PART * ROW}),
    "shift": (lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:24], {PERMUTE: ROW}),
    "slice": (lambda x: lax.slice_in_dim(x, 0, 16), {PERMUTE: PART * ROW}),
    "stride": (lambda x: lax.slice_in_dim(x, 0, 24, 2), {}),
    "nothing": (lambda x: jnp.pad(x[:0], ((24, 0), (0, 0))), {}),
    "window": (lambda x: windows(x, 3), {PERMUTE: 2 * ROW}),
    "wide window": (lambda x: windows(x, 24), {GATHER: 24 * ROW}),
    "convolution": (convolved, {PERMUTE: 3 * ROW}),
    "whole dim": (lambda x: lax.cumsum(x, 1), {}),
    "barrier": (lambda x: lax.with_sharding_constraint(lax.optimization_barrier(2 * x), P()), {GATHER: 24 * ROW}),
    "argmax": (lambda x: lax.argmax(x, 0, jnp.int32), {GATHER: 4 * 2 * ROW}),
    "row": (lambda x: x[0], {REDUCE: ROW}),
    "diagonal": (jnp.diagonal, {REDUCE: ROW}),
    "groups": (grouped, {GATHER: 24 * ROW}),
    "top-k": (lambda x: lax.top_k(x.T, 4)[0], {GATHER: 24 * ROW}),
    "gather": (lambda x: x.at[jnp.array([23, *range(23)])].get(unique_indices=True), {REDUCE: 24 * ROW}),
}


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("name", EXCHANGES)
def test_what_neighbors_exchange(name: str) -> None:
    function, flows = EXCHANGES[name]
    assert by_flow(explained(function, ROWS).collectives) == flows


@pytest.mark.usefixtures("mesh")
def test_an_fft_of_whole_dims_is_unknown_with_its_line() -> None:
    (unknown,) = explained(lambda x: jnp.fft.fft(x, axis=1), ROWS).collectives
    assert (unknown.kind, unknown.axes, unknown.bytes) == (UNKNOWN, ["data"], None)
    assert __file__ in unknown.source


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("function", [jnp.linalg.cholesky, jnp.linalg.qr, jnp.linalg.eigh, jnp.linalg.inv])
def test_decompositions_are_unknown_on_tpus(function: Callable[[jax.Array], Any]) -> None:
    lowered = jax.jit(function).trace(*arguments(((8, 24, 24), P("data")))).lower(lowering_platforms=("tpu",))
    found = explain(lowered.compiler_ir("stablehlo"), "test").collectives
    assert found
    assert all(each.kind == UNKNOWN and each.axes == ["data"] for each in found), found


def read() -> jax.Array:
    return jax.pure_callback(lambda: np.ones((24, 24), np.float32), jax.ShapeDtypeStruct((24, 24), "float32"))


@pytest.mark.usefixtures("mesh")
def test_all_devices_get_what_only_one_has() -> None:
    all_of_it = {("all-reduce", ("data", "model")): 24 * ROW}
    spread = jax.jit(read, out_shardings=NamedSharding(jax.sharding.get_mesh(), P("data"))).lower()
    found = answer(spread, "test")
    assert found.estimated == found.found == all_of_it

    met = answer(jax.jit(lambda x: x * read()).lower(*arguments(ROWS)), "test")  # the result is whole
    assert met.wrong == []
    assert met.estimated.items() >= all_of_it.items()
    for function, size in (
        (lambda x: x + (one := read()).sum(0) + one.max(), ROW + FLOAT),
        (lambda x: x + jax.jit(read)().sum(0), ROW),
    ):
        reduced = answer(jax.jit(function).lower(*arguments(ROWS)), "test")
        assert reduced.estimated == reduced.found == {("all-reduce", ("data", "model")): size}


@custom_partitioning
def norm(x: jax.Array) -> jax.Array:
    return x - x.mean(-1, keepdims=True)


norm.def_partition(
    partition=lambda mesh, given, made: (mesh, norm, made.sharding, (given[0].sharding,)),
    sharding_rule="i j -> i j",
    need_replication_factors=("j",),
)


def dispatched(x: jax.Array, sizes: jax.Array) -> jax.Array:
    at = jnp.arange(4, dtype=jnp.int32)
    return lax.ragged_all_to_all(x, jnp.zeros_like(x), at, sizes, at, sizes, axis_name="data")


@pytest.mark.usefixtures("mesh")
def test_custom_calls_that_communicate_are_estimated_or_named() -> None:
    found = explained(norm, ((16, 32), P("data", "model"))).collectives
    assert [each.kind for each in found] == [UNKNOWN, "all-gather"]
    assert (found[1].axes, found[1].bytes) == (["model"], 16 // 4 * 32 * FLOAT)

    mapped = jax.shard_map(dispatched, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    sizes = jax.ShapeDtypeStruct((4,), "int32", sharding=NamedSharding(jax.sharding.get_mesh(), P()))
    lowered = jax.jit(mapped).lower(*arguments(((16, 8), P("data"))), sizes)
    (sent,) = explain(lowered.compiler_ir("stablehlo"), "test").collectives
    assert (sent.kind, sent.axes, sent.bytes) == ("ragged-all-to-all", ["data"], 4 * 8 * FLOAT)

    foreign = jax.shard_map(lambda x: jax.ffi.ffi_call("remote_copy", x)(x), in_specs=P("data"), out_specs=P("data"))
    (unknown,) = explained(foreign, ROWS).collectives
    assert (unknown.kind, unknown.bytes) == (UNKNOWN, None)
    assert "remote_copy" in unknown.because[0]


def copied(given: Any, made: Any, *semaphores: Any) -> None:
    """A kernel that copies its part to the next device."""
    there = (lax.axis_index("data") + 1) % 4
    copy = pltpu.make_async_remote_copy(given, made, *semaphores, device_id={"data": there})
    copy.start()
    copy.wait()


def doubled(given: Any, made: Any, *_: Any) -> None:
    made[...] = given[...] * 2


@pytest.mark.usefixtures("mesh")
def test_a_pallas_kernel_that_copies_to_other_devices_is_unknown_and_another_is_not() -> None:
    def kinds(kernel: Callable[..., None]) -> list[str]:
        call = pl.pallas_call(
            kernel, out_shape=jax.ShapeDtypeStruct((8, 128), "float32"), scratch_shapes=[pltpu.SemaphoreType.DMA] * 2
        )
        mapped = jax.shard_map(call, in_specs=P("data"), out_specs=P("data"), check_vma=False)
        lowered = jax.jit(mapped).trace(*arguments(((32, 128), P("data")))).lower(lowering_platforms=("tpu",))
        return [each.kind for each in explain(lowered.compiler_ir("stablehlo"), "test").collectives]

    assert (kinds(copied), kinds(doubled)) == ([UNKNOWN], [])


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_answered_as_compiled_or_unknown(seed: int) -> None:
    assert random_answer(seed).wrong == []


@pytest.mark.core
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_libraries_are_answered_as_compiled_or_unknown(name: str) -> None:
    assert library_answer(name).wrong == []
