"""A regression whose data go wrong twice: the inputs of step 150 are not normalized, and an example of step 250 has no
target, so that its mean divides by zero. `shardtui --model docs/examples/goes_wrong.py:Regression --batch-size 16`"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

LARGE, EMPTY = 150, 250
"""The steps."""


class Regression(nnx.Module):
    def __init__(self, width: int = 64, *, rngs: nnx.Rngs) -> None:
        self.into = nnx.Linear(16, width, rngs=rngs)
        self.out = nnx.Linear(width, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.gelu(self.into(x)))


def loss(model: Regression, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the mean over the examples of the mean over their known targets."""
    error, known = model(batch["x"]) - batch["y"], batch["known"]
    each = jnp.sum(known * jnp.square(error), axis=-1) / jnp.sum(known, axis=-1)
    return each.mean(), {"largest error": jnp.abs(error).max()}


def batch(step: int, batch_size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    x = random.normal(size=(batch_size, 16)).astype(np.float32)
    y = np.sin(x[:, :4] + x[:, 4:8])
    known = np.ones((batch_size, 4), np.float32)
    if step + 1 == LARGE:
        x *= 100
    if step + 1 == EMPTY:
        known[5] = 0
    return {"x": x, "y": y, "known": known}
