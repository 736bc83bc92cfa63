"""The least model with batches that take 20 ms, for tests of a run that trains on: it leaves them the processor."""

import time

import jax
import numpy as np
from flax import nnx
from least_model import LeastModel


class SlowToTrace(LeastModel):
    def __call__(self, tokens: jax.Array) -> jax.Array:
        time.sleep(0.5)
        return super().__call__(tokens)


def batch(step: int, batch_size: int) -> dict[str, np.ndarray]:
    time.sleep(0.02)
    return {"tokens": np.random.default_rng(step).integers(0, 256, (batch_size, 16), np.int32)}


def loss(model: nnx.Module, batch: dict[str, jax.Array]) -> jax.Array:
    return model(batch["tokens"]).mean()
