"""Plain JAX with Optax: gradients are averaged by hand in `jax.shard_map`, over batches from NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, 30)))


def loss_fn(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.tanh(x @ w + b)
    w, b = params[-1]
    return jnp.mean((x @ w + b - y) ** 2)


def gradients_of(params, x, y):
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.lax.pmean(loss, "data"), jax.lax.pmean(gradients, "data")


averaged = jax.shard_map(
    gradients_of, mesh=mesh, in_specs=(PartitionSpec(), *[PartitionSpec("data")] * 2), out_specs=PartitionSpec(),
    check_vma=False,
)  # fmt: skip


@jax.jit
def update(params, opt_state, x, y):
    loss, gradients = averaged(params, x, y)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def evaluate(params, x, y):
    return loss_fn(params, x, y)


sizes, generator = (16, 64, 64, 4), np.random.default_rng(0)
params = [
    (generator.normal(size=(a, b), scale=a**-0.5).astype(np.float32), np.zeros(b, np.float32))
    for a, b in itertools.pairwise(sizes)
]
params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
opt_state = optimizer.init(params)
for _ in range(30):
    x = generator.normal(size=(64, 16)).astype(np.float32)
    params, opt_state, loss = update(params, opt_state, x, np.sin(x[:, :4]))
    print(float(loss).hex())
    evaluate(params, x, np.sin(x[:, :4]))
