"""Parts of a split dim that devices take from others, against XLA's compilers."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.spec.topology import load_topology

from .test_lookups import SPLIT, Argument, traced_and_compiled

F32 = jnp.float32
ROWS, WEIGHTS = ((3072, 1024), SPLIT, F32), ((1024, 6144), P(None, "data"), F32)
ROWS_OF_IMAGE, OUTPUTS = P(None, "data"), P(None, None, None, "data")


def fused(count: int) -> Callable[[jax.Array, jax.Array], list[jax.Array]]:
    """A layer whose product is `count` values side by side, as of queries, keys and values."""
    return lambda x, weights: jnp.split(jnp.tanh(x @ weights), count, axis=1)


def convolved(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def gradient(kernel: jax.Array, images: jax.Array) -> jax.Array:
    return jax.grad(lambda kernel: jnp.tanh(convolved(images, kernel)).sum())(kernel)


def maxima(x: jax.Array, size: int) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (size, 1), (1, 1), ((size - 1, 0), (0, 0)))


ALONG_ROWS: dict[str, Callable[[jax.Array], object]] = {
    "first half": lambda x: x[:1536],
    "second half": lambda x: x[1536:],
    "middle": lambda x: x[1024:2048],
    "all but a few": lambda x: x[40:],
    "shift": lambda x: jnp.pad(x, ((700, 0), (0, 0)))[:-700],
    "more rows": lambda x: jnp.pad(x, ((3072, 0), (0, 0))),
    "product of a part": lambda x: jnp.tanh(x)[:1536] @ jnp.ones((1024, 1024)),
}


WIDE = {"window of several parts": lambda x: maxima(x, 1000), "window of all parts": lambda x: maxima(x, 3000)}
"""Which the TPU's compiler takes minutes for."""
IMAGES, KERNEL = (64, 32, 32, 256), (3, 3, 256, 256)
OF_IMAGES: dict[str, tuple[Callable[..., object], list[Argument], P]] = {
    "split image": (convolved, [((8, 256, 256, 64), ROWS_OF_IMAGE, F32), ((3, 3, 64, 64), P(), F32)], ROWS_OF_IMAGE),
    "split kernel": (gradient, [(KERNEL, OUTPUTS, F32), (IMAGES, SPLIT, F32)], OUTPUTS),
}


def assert_alike(
    function: Callable[..., object], arguments: list[Argument], out: Any, name: str, axes: dict[str, int]
) -> None:
    devices = np.array(find_slice(load_topology(name)) if name else jax.devices())
    mesh = Mesh(devices.reshape(*axes.values()), [*axes])
    traced, compiled = traced_and_compiled(mesh, function, arguments, out, name)
    assert traced == compiled != []


@pytest.mark.parametrize("name", ["first half", "middle", *WIDE])
def test_devices_take_parts_from_others(name: str) -> None:
    assert_alike((ALONG_ROWS | WIDE)[name], [ROWS], SPLIT, "", {"data": 8})


def test_a_dim_on_one_device_needs_no_others() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(1, 8), ("data", "model"))
    for function in ALONG_ROWS.values():
        assert traced_and_compiled(mesh, function, [ROWS], SPLIT, "") == ([], [])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extras tpu and gpu-compiler; `.ci/run` has them")
@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:1x8"])
class TestCompilers:
    @pytest.mark.parametrize("name", ALONG_ROWS)
    def test_parts_are_taken_as_traced(self, name: str, topology: str) -> None:
        assert_alike(ALONG_ROWS[name], [ROWS], SPLIT, topology, {"data": 8})

    @pytest.mark.parametrize("axes", [{"data": 8}, {"model": 2, "data": 4}])
    @pytest.mark.parametrize("count", [2, 3])
    def test_fused_products_are_split_as_traced(self, count: int, axes: dict[str, int], topology: str) -> None:
        out = [P(None, "data")] * count
        assert_alike(fused(count), [((4096, 1024), P(), F32), WEIGHTS], out, topology, axes)

    def test_a_dim_may_be_split_over_two_axes(self, topology: str) -> None:
        both = P(("model", "data"))
        assert_alike(ALONG_ROWS["middle"], [(ROWS[0], both, F32)], both, topology, {"model": 2, "data": 4})

    @pytest.mark.parametrize("name", OF_IMAGES)
    def test_convolutions_move_parts_as_traced(self, name: str, topology: str) -> None:
        function, arguments, out = OF_IMAGES[name]
        assert_alike(function, arguments, out, topology, {"data": 8})
