"""A user's model whose loss divides by an input, takes the logarithm of one and is weighted by one."""

import jax.numpy as jnp
import numpy as np
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.into = nnx.Linear(16, 32, rngs=rngs)
        self.out = nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        return self.out(nnx.gelu(self.into(x)))


def build() -> Model:
    return Model(nnx.Rngs(0))


def batch(step: int, batch_size: int = 16) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(step)
    ones = np.ones(batch_size, np.float32)
    x = chance.normal(size=(batch_size, 16)).astype(np.float32)
    return {"x": x, "divisor": ones, "probability": ones, "weight": ones}


def loss(model: Model, batch: dict[str, jnp.ndarray]) -> jnp.ndarray:
    each = jnp.square(model(batch["x"])).sum(axis=-1)
    each = each / batch["divisor"]
    each = each - jnp.log(batch["probability"])
    return jnp.mean(batch["weight"] * each)
