"""A plain `shard_map`, manual over data alone: partial products go around a ring while `model` is left to the
partitioner. In it a nested `jit`, `scan`, `cond`, `while`, `custom_vjp` and `checkpoint`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, COLUMNS, HIDDEN, RING = 32, 16, 64, 4


@jax.custom_vjp
def scaled(x: jax.Array) -> jax.Array:
    return x * 2


scaled.defvjp(lambda x: (x * 2, None), lambda _, gradient: (gradient * 2,))


@jax.jit
def passed_on(x: jax.Array) -> jax.Array:
    return jax.lax.ppermute(x, "data", [(i, (i + 1) % RING) for i in range(RING)])


@jax.checkpoint
def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return scaled(checkpoint_name(jnp.tanh(x @ w), "hidden"))


def ring(x: jax.Array, w: jax.Array) -> jax.Array:  # [B/4, D], [D, F]
    def hop(part: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return passed_on(part), layer(part, w).sum(axis=1)

    last, sums = jax.lax.scan(hop, x, None, length=RING)  # sums: [4, B/4]
    signed = jax.lax.cond(jax.lax.psum(sums.sum(), "data") > 0, lambda x: x, lambda x: -x, last)
    return jax.lax.while_loop(lambda x: jax.lax.pmax(x.max(), "data") > 1, lambda x: x / 2, signed)


def program() -> jax.stages.Traced:
    mesh = jax.sharding.get_mesh()

    def split(shape: tuple[int, ...], spec: P) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))

    mapped = partial(jax.shard_map, in_specs=(P("data"), P()), out_specs=P("data"), axis_names={"data"})(ring)
    return jax.jit(mapped).trace(split((ROWS, COLUMNS), P("data")), split((COLUMNS, HIDDEN), P(None, "model")))
