"""A Haiku MLP, fully sharded: each weight is split over the axis of the batch, and gathered before its use."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, WIDTH, HIDDEN, OUT = 256, 16, 64, 8


def forward(x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(hk.Linear(HIDDEN, with_bias=False, name="up")(x))  # [B, F]
    hidden = jax.lax.with_sharding_constraint(checkpoint_name(hidden, "hidden"), P("data"))
    return jax.lax.with_sharding_constraint(hk.Linear(OUT, with_bias=False, name="down")(hidden), P("data"))


def program() -> jax.stages.Lowered:
    mesh, network = jax.sharding.get_mesh(), hk.without_apply_rng(hk.transform(forward))

    def split(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P("data")))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(network.apply(params, x) ** 2)

    params = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((BATCH, WIDTH)))
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")
    return jax.jit(loss).lower(jax.tree.map(split, params), split(x))
