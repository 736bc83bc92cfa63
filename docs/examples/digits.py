"""A convolutional net with BatchNorm and dropout, as Flax's tutorial on handwritten digits has it; the digits are drawn
from noise, so that nothing is downloaded. No array is annotated: under `dp` the batch alone is split.
`shardtui --model docs/examples/digits.py:CNN --batch-size 64`"""

from functools import partial

import jax
import numpy as np
import optax
from flax import nnx


class CNN(nnx.Module):
    def __init__(self, dropout: float = 0.025, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
        self.norm1 = nnx.BatchNorm(32, rngs=rngs)
        self.dropout1 = nnx.Dropout(dropout, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
        self.norm2 = nnx.BatchNorm(64, rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.linear1 = nnx.Linear(7 * 7 * 64, 256, rngs=rngs)
        self.dropout2 = nnx.Dropout(dropout, rngs=rngs)
        self.linear2 = nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.pool(nnx.relu(self.norm1(self.dropout1(self.conv1(x)))))
        x = self.pool(nnx.relu(self.norm2(self.conv2(x))))
        x = x.reshape(x.shape[0], -1)
        return self.linear2(self.dropout2(nnx.relu(self.linear1(x))))


def loss(model: CNN, batch: dict[str, jax.Array]) -> jax.Array:
    logits = model(batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def batch(step: int, batch_size: int) -> dict[str, np.ndarray]:
    """A digit is one of ten fixed patterns, with noise over it."""
    patterns = np.random.default_rng(0).random((10, 28, 28, 1), np.float32)
    random = np.random.default_rng((1, step))
    label = random.integers(0, 10, batch_size)
    noise = random.standard_normal((batch_size, 28, 28, 1), np.float32)
    return {"image": patterns[label] + 0.3 * noise, "label": label}
