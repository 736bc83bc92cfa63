"""Hand-written `shard_map` programs over data = 4 × model = 2 and over slices, with collectives known in advance."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, COLUMNS, TRIPS, OUTER_TRIPS = 512, 1024, 5, 3
SHARD = ROWS // 4 * COLUMNS // 2 * 4
"""Bytes of one device's shard of x, float32 `[512, 1024]` split over both axes."""
SPLIT_BOTH_WAYS = P("data", "model")


Body = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Program:
    name: str
    body: Body
    """What runs on one device's shard."""
    out: P
    """The spec of the result."""
    traffic: tuple[str, list[str], int | None, int]
    """Kind, axes, times per run (None if that depends on data) and bytes each."""
    into: P = SPLIT_BOTH_WAYS

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        return lowered(self.body, mesh, ROWS, self.into, self.out)


def programs() -> Iterator[Program]:
    both, rows = SPLIT_BOTH_WAYS, P("data", None)
    regathered = looped(lambda x: gathered(x)[:, 1 : x.shape[1] + 1])  # as many columns as there were
    rescattered = looped(lambda x: jnp.tile(scattered(x), (1, 2)))
    counted = partial(jax.lax.fori_loop, 2, 9, lambda _, x: psum(x) * 0.5 + jnp.sin(x))
    until_large = partial(jax.lax.while_loop, lambda x: x.sum() < 1e6, lambda x: psum(x) + x)
    yield Program("psum", psum, P(None, "model"), ("all-reduce", ["data"], 1, SHARD))
    over_both = ("all-reduce", ["data", "model"], 1, SHARD)
    yield Program("psum over two axes", partial(psum, axis=("data", "model")), P(None, None), over_both)
    yield Program("pmax", lambda x: jax.lax.pmax(x, "model"), rows, ("all-reduce", ["model"], 1, SHARD))
    yield Program("all_gather", gathered, rows, ("all-gather", ["model"], 1, 2 * SHARD))
    yield Program("psum_scatter", scattered, both, ("reduce-scatter", ["model"], 1, 2 * SHARD), into=rows)
    yield Program("all_to_all", exchanged, P(("data", "model"), None), ("all-to-all", ["model"], 1, SHARD))
    yield Program("ppermute", around, both, ("collective-permute", ["data"], 1, SHARD))
    yield Program("psum in a loop", looped(psum), both, ("all-reduce", ["data"], TRIPS, SHARD))
    yield Program("psum in two loops", looped(looped(psum), OUTER_TRIPS), both, ("all-reduce", ["data"], 15, SHARD))
    yield Program("all_gather in a loop", regathered, both, ("all-gather", ["model"], TRIPS, 2 * SHARD))
    yield Program("psum_scatter in a loop", rescattered, both, ("reduce-scatter", ["model"], TRIPS, SHARD))
    yield Program("ppermute in a loop", looped(around), both, ("collective-permute", ["data"], TRIPS, SHARD))
    yield Program("fori_loop from 2 to 9", counted, both, ("all-reduce", ["data"], 7, SHARD))
    yield Program("a loop that depends on data", until_large, both, ("all-reduce", ["data"], None, SHARD))


SLICE_SHARD = 64 * 512 * 4
"""Bytes of one device's shard of the input of a program over slices, however many slices there are."""


@dataclass(frozen=True)
class SlicesProgram:
    """A program with one transfer between slices, over the mesh replica = slices × data = 4 × model = 2."""

    name: str
    body: Body
    out: P
    kind: str
    gathers: bool = False
    """Whether its bytes are those of all slices' shards."""
    times: int = 1

    def traffic(self, slices: int) -> tuple[str, list[str], int, int, str]:
        """Kind, axes, times per run, bytes each and network."""
        each = SLICE_SHARD * (slices if self.gathers else 1)
        return self.kind, ["replica"], self.times, each, "dcn"

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        return lowered(self.body, mesh, 256 * mesh.shape["replica"], P(("replica", "data"), "model"), self.out)


def slices_programs() -> Iterator[SlicesProgram]:
    same, whole, wide = P(("replica", "data"), "model"), P("data", "model"), P("data", ("model", "replica"))
    summed, passed = partial(psum, axis="replica"), partial(around, axis="replica")
    joined, parted = partial(gathered, axis="replica", dim=0), partial(scattered, axis="replica")
    exchanged_rows = partial(exchanged, axis="replica", dim=0)
    rejoined = looped(lambda x: joined(x)[1 : x.shape[0] + 1])
    reparted = looped(lambda x: jnp.tile(parted(x), (1, jax.lax.axis_size("replica"))))
    yield SlicesProgram("psum", summed, whole, "all-reduce")
    yield SlicesProgram("all_gather", joined, whole, "all-gather", gathers=True)
    yield SlicesProgram("psum_scatter", parted, wide, "reduce-scatter")
    yield SlicesProgram("all_to_all", partial(exchanged, axis="replica"), wide, "all-to-all")
    yield SlicesProgram("ppermute", passed, same, "collective-permute")
    yield SlicesProgram("psum in a loop", looped(summed), same, "all-reduce", times=TRIPS)
    yield SlicesProgram("all_gather in a loop", rejoined, same, "all-gather", gathers=True, times=TRIPS)
    yield SlicesProgram("psum_scatter in a loop", reparted, same, "reduce-scatter", times=TRIPS)
    yield SlicesProgram("all_to_all in a loop", looped(exchanged_rows), same, "all-to-all", times=TRIPS)
    yield SlicesProgram("ppermute in a loop", looped(passed), same, "collective-permute", times=TRIPS)


def lower_hierarchy(mesh: Mesh) -> jax.stages.Lowered:
    """Lowers an all-reduce over an axis that is both inside slices and across them: data = 4 × slices, model = 2."""
    return lowered(psum, mesh, 64 * mesh.shape["data"], SPLIT_BOTH_WAYS, P(None, "model"))


def lowered(body: Body, mesh: Mesh, rows: int, into: P, out: P) -> jax.stages.Lowered:
    x = jax.ShapeDtypeStruct((rows, COLUMNS), jnp.float32, sharding=NamedSharding(mesh, into))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=into, out_specs=out, check_vma=False)).lower(x)


LAYERS, WIDTH = 4, 1024


def fsdp_step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A training step of a deep network, weights `[L, D, D]` and x `[B, D]`; the compiler inserts the collectives."""

    def loss(weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return weights - gradients, value


def lower_fsdp(mesh: Mesh) -> jax.stages.Lowered:
    """Lowers the step with weights and batch split over data: each layer is gathered twice, its gradient scattered."""
    split = NamedSharding(mesh, P(None, "data", None))
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32, sharding=split)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    return jax.jit(fsdp_step, out_shardings=(split, None)).lower(weights, x)


def psum(x: jax.Array, axis: str | tuple[str, str] = "data") -> jax.Array:
    return jax.lax.psum(x, axis)


def gathered(x: jax.Array, axis: str = "model", dim: int = 1) -> jax.Array:
    return jax.lax.all_gather(x, axis, axis=dim, tiled=True)


def scattered(x: jax.Array, axis: str = "model") -> jax.Array:
    return jax.lax.psum_scatter(x, axis, scatter_dimension=1, tiled=True)


def exchanged(x: jax.Array, axis: str = "model", dim: int = 1) -> jax.Array:
    return jax.lax.all_to_all(x, axis, 0, dim, tiled=True)


def around(x: jax.Array, axis: str = "data") -> jax.Array:
    devices = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, [(i, (i + 1) % devices) for i in range(devices)])


def looped(body: Body, trips: int = TRIPS) -> Body:
    """Returns a loop of `body` that no compiler can hoist."""

    def run(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (body(x) * 0.5 + jnp.sin(x), None), x, None, length=trips)[0]

    return run
