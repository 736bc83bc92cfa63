"""A Haiku model with state, trained by a method of a class that holds a `NamedTuple`, fully sharded."""

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))


class TrainingState(NamedTuple):
    params: Any
    average: Any
    net_state: Any
    opt_state: Any


def forward(x, is_training):
    x = hk.Linear(128)(x)
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training)
    return hk.Linear(8)(jax.nn.relu(x))


class Experiment:
    def __init__(self):
        self.network = hk.without_apply_rng(hk.transform_with_state(forward))
        self.optimizer = optax.lion(1e-3)
        self.update = jax.jit(self._update, donate_argnums=0)

    def init(self, key, x):
        params, net_state = self.network.init(key, x, True)
        state = TrainingState(params, params, net_state, self.optimizer.init(params))
        return jax.tree.map(self.placed, state)

    def placed(self, leaf):
        spec = PartitionSpec("fsdp") if leaf.ndim and leaf.shape[0] % 8 == 0 else PartitionSpec()
        return jax.device_put(leaf.copy(), NamedSharding(mesh, spec))

    def _update(self, state, x, y):
        def loss_fn(params):
            logits, net_state = self.network.apply(params, state.net_state, x, True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), net_state

        (loss, net_state), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = optax.incremental_update(params, state.average, 0.01)
        return TrainingState(params, average, net_state, opt_state), {"loss": loss, "accuracy_gap": 1 - jnp.exp(-loss)}


experiment, split = Experiment(), NamedSharding(mesh, PartitionSpec("fsdp"))
state = None
for step in range(30):
    one, two = jax.random.split(jax.random.fold_in(jax.random.key(1), step))
    x = jax.device_put(jax.random.normal(one, (64, 16)), split)
    y = jax.device_put(jax.random.randint(two, (64,), 0, 8), split)
    state = state or experiment.init(jax.random.key(0), x)
    state, metrics = experiment.update(state, x, y)
    print(float(metrics["loss"]).hex())
