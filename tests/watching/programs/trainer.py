"""The part of the program that uses jax."""

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

STEPS = 6


@jax.jit
def evaluate(params, inputs):
    return jnp.mean(inputs @ params["up"])


class Trainer:
    optimizer = optax.adam(1e-2)

    @jax.jit(static_argnames="self", donate_argnames="state")
    def train_step(self, state, inputs):
        def loss_of(params):
            return jnp.mean((jnp.tanh(inputs @ params["up"]) @ params["down"] - inputs) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, optimizer_state = self.optimizer.update(gradients, state["opt_state"])
        state = {"params": optax.apply_updates(state["params"], updates), "opt_state": optimizer_state}
        return state, {"learning": {"loss": loss, "grad_norm": optax.global_norm(gradients)}}


def train() -> Callable[[], Any]:
    """Returns what takes a step that fails."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    columns, rows, batch = (NamedSharding(mesh, P(*spec)) for spec in ((None, "model"), ("model",), ("data",)))
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "up": jax.device_put(jax.random.normal(keys[0], (16, 32)), columns),
        "down": jax.device_put(jax.random.normal(keys[1], (32, 16)), rows),
    }
    inputs = jax.device_put(jax.random.normal(keys[2], (8, 16)), batch)
    trainer = Trainer()
    state = {"params": params, "opt_state": trainer.optimizer.init(params)}
    for _ in range(STEPS):
        state, metrics = trainer.train_step(state=state, inputs=inputs)
        print(*(float(metrics["learning"][name]).hex() for name in ("loss", "grad_norm")))
        evaluate(state["params"], inputs)
    assert pickle.loads(pickle.dumps(jax.jit)) is jax.jit
    return lambda: trainer.train_step(state=state, inputs=inputs[:, :-1])
