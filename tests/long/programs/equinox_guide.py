"""An Equinox model trained by `eqx.filter_jit`, with donation, data-parallel over eight devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))


class Network(eqx.Module):
    embed: eqx.nn.Linear
    mlp: eqx.nn.MLP
    scale: jax.Array
    name: str = eqx.field(static=True)

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.embed = eqx.nn.Linear(8, 32, key=one)
        self.mlp = eqx.nn.MLP(32, 1, 64, 2, key=two)
        self.scale, self.name = jnp.ones(()), "network"

    def __call__(self, x):
        return self.scale * self.mlp(jax.nn.silu(self.embed(x)))


optimizer = optax.adamw(1e-3)


@eqx.filter_value_and_grad
def loss_of(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@eqx.filter_jit(donate="all-except-first")
def make_step(batch, model, opt_state):
    loss, gradients = loss_of(model, *batch)
    updates, opt_state = optimizer.update(gradients, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), opt_state, loss


model = Network(jax.random.key(0))
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
model, opt_state = eqx.filter_shard((model, opt_state), replicated)
for step in range(30):
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), step), (64, 8))
    batch = eqx.filter_shard((x, jnp.prod(x, axis=1, keepdims=True)), split)
    model, opt_state, loss = make_step(batch, model, opt_state)
    print(float(loss).hex())
