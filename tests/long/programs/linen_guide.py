"""A Linen model with logical axes and a donated `TrainState`, whose shardings are set by `jax.jit`."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
rules = (("batch", "data"), ("embed", None), ("mlp", "model"))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, is_training: bool):
        init = nn.initializers.lecun_normal()
        hidden = nn.Dense(128, kernel_init=nn.with_logical_partitioning(init, ("embed", "mlp")))(nn.LayerNorm()(x))
        hidden = nn.with_logical_constraint(nn.gelu(hidden), ("batch", "mlp"))
        hidden = nn.Dropout(0.1, deterministic=not is_training)(hidden)
        return x + nn.Dense(32, kernel_init=nn.with_logical_partitioning(init, ("mlp", "embed")))(hidden)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x, is_training: bool = False):
        for _ in range(2):
            x = Block()(x, is_training)
        return nn.Dense(1)(x)


network, batch = Network(), jax.random.normal(jax.random.key(0), (32, 32))


def create(key):
    params = network.init(key, batch)["params"]
    return train_state.TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(1e-3))


def shardings_of(tree):
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(tree), mesh, rules)


state_sharding = shardings_of(jax.eval_shape(create, jax.random.key(1)))
split = NamedSharding(mesh, PartitionSpec("data"))
state = jax.jit(create, out_shardings=state_sharding)(jax.random.key(1))


@partial(jax.jit, donate_argnames="state", out_shardings=(state_sharding, None))
def train_step(state, x, key):
    def loss_fn(params):
        with nn.logical_axis_rules(rules), mesh:
            y = state.apply_fn({"params": params}, x, is_training=True, rngs={"dropout": key})
        return jnp.mean((y - x.sum(-1, keepdims=True)) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    state = state.apply_gradients(grads=gradients)
    return state, {"loss": loss, "norms": {"gradient": optax.global_norm(gradients)}}


key = jax.random.key(2)
for step in range(30):
    x = jax.device_put(jax.random.normal(jax.random.fold_in(key, step), (32, 32)), split)
    state, metrics = train_step(state, x, jax.random.fold_in(key, 1000 + step))
    print(float(metrics["loss"]).hex())
