"""Programs whose traffic is known on paper, written by hand with `shard_map` over data = 4 × model = 2."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, COLUMNS, TRIPS, OUTER_TRIPS = 512, 1024, 5, 3
SHARD = ROWS // 4 * COLUMNS // 2 * 4
"""Bytes of one device's part of x, float32 [512, 1024] split both ways."""
SPLIT_BOTH_WAYS = P("data", "model")


@dataclass(frozen=True)
class Program:
    name: str
    body: Callable[[jax.Array], jax.Array]
    """Of one device's part."""
    out: P
    traffic: tuple[str, list[str], int | None, int]
    """Kind, axes, times in a run, bytes each."""
    into: P = SPLIT_BOTH_WAYS

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        x = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32, sharding=NamedSharding(mesh, self.into))
        mapped = jax.shard_map(self.body, mesh=mesh, in_specs=self.into, out_specs=self.out, check_vma=False)
        return jax.jit(mapped).lower(x)


def programs() -> Iterator[Program]:
    both, rows = SPLIT_BOTH_WAYS, P("data", None)
    yield Program("psum", lambda x: jax.lax.psum(x, "data"), P(None, "model"), ("all-reduce", ["data"], 1, SHARD))
    yield Program(
        "psum over two axes",
        lambda x: jax.lax.psum(x, ("data", "model")),
        P(None, None),
        ("all-reduce", ["data", "model"], 1, SHARD),
    )
    yield Program("pmax", lambda x: jax.lax.pmax(x, "model"), rows, ("all-reduce", ["model"], 1, SHARD))
    yield Program("all_gather", gathered, rows, ("all-gather", ["model"], 1, 2 * SHARD))
    yield Program("psum_scatter", scattered, both, ("reduce-scatter", ["model"], 1, 2 * SHARD), into=rows)
    yield Program(
        "all_to_all",
        lambda x: jax.lax.all_to_all(x, "model", 0, 1, tiled=True),
        P(("data", "model"), None),
        ("all-to-all", ["model"], 1, SHARD),
    )
    yield Program("ppermute", around, both, ("collective-permute", ["data"], 1, SHARD))
    yield Program("psum in a loop", looped(psum), both, ("all-reduce", ["data"], TRIPS, SHARD))
    yield Program("psum in two loops", looped(looped(psum), OUTER_TRIPS), both, ("all-reduce", ["data"], 15, SHARD))
    yield Program("all_gather in a loop", looped(half_gathered), both, ("all-gather", ["model"], TRIPS, 2 * SHARD))
    yield Program("psum_scatter in a loop", looped(tiled_scatter), both, ("reduce-scatter", ["model"], TRIPS, SHARD))
    yield Program("ppermute in a loop", looped(around), both, ("collective-permute", ["data"], TRIPS, SHARD))
    yield Program("fori_loop from 2 to 9", counted, both, ("all-reduce", ["data"], 7, SHARD))
    yield Program("a loop that depends on data", until_large, both, ("all-reduce", ["data"], None, SHARD))


LAYERS, WIDTH = 4, 1024


def fsdp_step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step of a deep linear net, [L, D, D] and [B, D]; what moves is left to the compiler."""

    def loss(weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return weights - gradients, value


def lower_fsdp(mesh: Mesh) -> jax.stages.Lowered:
    """Weights and batch both split over data: each layer is gathered twice and its gradient scattered once."""
    split = NamedSharding(mesh, P(None, "data", None))
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32, sharding=split)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    return jax.jit(fsdp_step, out_shardings=(split, None)).lower(weights, x)


def psum(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, "data")


def gathered(x: jax.Array) -> jax.Array:
    return jax.lax.all_gather(x, "model", axis=1, tiled=True)


def scattered(x: jax.Array) -> jax.Array:
    return jax.lax.psum_scatter(x, "model", scatter_dimension=1, tiled=True)


def half_gathered(x: jax.Array) -> jax.Array:
    return gathered(x)[:, 1 : x.shape[1] + 1]


def tiled_scatter(x: jax.Array) -> jax.Array:
    return jnp.tile(scattered(x), (1, 2))


def around(x: jax.Array) -> jax.Array:
    return jax.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)])


def looped(body: Callable[[jax.Array], jax.Array], trips: int = TRIPS) -> Callable[[jax.Array], jax.Array]:
    """`body` again and again, in a way that no compiler moves out of the loop."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (body(x) * 0.5 + jnp.sin(x), None), x, None, length=trips)[0]

    return run


def counted(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(2, 9, lambda _, x: psum(x) * 0.5 + jnp.sin(x), x)


def until_large(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda x: x.sum() < 1e6, lambda x: psum(x) + x, x)
