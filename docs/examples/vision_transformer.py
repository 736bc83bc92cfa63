"""A small vision transformer: patches, blocks that are stacked and scanned, and a class. Stacked blocks compile as one.
`shardtui --model docs/examples/vision_transformer.py:VisionTransformer --preset fsdp-tp2`"""

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx


def _named(init: Any, *axes: str) -> Any:
    return nnx.with_partitioning(init, axes)


class Block(nnx.Module):
    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs) -> None:
        kernel = nnx.initializers.xavier_uniform()
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            heads,
            width,
            kernel_init=_named(kernel, "embed", "heads", "head_dim"),
            out_kernel_init=_named(kernel, "heads", "head_dim", "embed"),
            decode=False,
            rngs=rngs,
        )
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, kernel_init=_named(kernel, "embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(4 * width, width, kernel_init=_named(kernel, "mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class VisionTransformer(nnx.Module):
    def __init__(self, width: int = 64, heads: int = 8, depth: int = 2, size: int = 32, *, rngs: nnx.Rngs) -> None:
        patches = (size // 4) ** 2
        patch = _named(nnx.initializers.lecun_normal(), "", "", "", "embed")
        self.patch = nnx.Conv(3, width, kernel_size=(4, 4), strides=4, kernel_init=patch, rngs=rngs)
        self.position = nnx.Param(
            0.02 * jax.random.normal(rngs.params(), (patches, width)), out_sharding=(None, "embed")
        )

        @nnx.split_rngs(splits=depth)
        @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(width, heads, rngs=rngs)

        self.blocks = stack(rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patch(images)  # [B, H/4, W/4, D]
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.position[...]  # [B, patches, D]

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, transform_metadata={nnx.PARTITION_NAME: "layers"})
        def through(x: jax.Array, block: Block) -> jax.Array:
            return block(x)

        return self.head(self.norm(through(x, self.blocks)).mean(axis=1))


def loss(model: VisionTransformer, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


def batch(step: int, batch_size: int, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Images of one colour and noise: the class is the brightest of ten stripes."""
    random = np.random.default_rng(step)
    labels = random.integers(0, 10, batch_size)
    images = random.standard_normal((batch_size, size, size, 3), np.float32)
    stripes = np.arange(size) * 10 // size
    images += 2 * (stripes[None, None, :, None] == labels[:, None, None, None])
    return images, labels
