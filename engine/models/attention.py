"""The attention of a block, with rotary positions and their scalings for long contexts."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from ..parallel.constraints import out_sharding, shard, token_groups
from ..spec.model_config import ModelConfig, Rope
from .attention_kernels import QUERY, Scores, attend, keys_and_values
from .layers import INIT_STDDEV, heads_norm, projection
from .sizes import AttentionKernels


class Attention(nnx.Module):
    """Causal self-attention. Query, key and value are one projection, so that their gradient is reduced once instead of
    three times. With grouped heads, several share keys and values, and the query has its own projection."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, kernels: AttentionKernels, rngs: nnx.Rngs) -> None:
        self._config, self._kernels = config, kernels
        width, heads = (config.embed,), (config.heads, config.head_dim)
        keys = 2, config.key_heads, config.head_dim
        stddev, has_bias = INIT_STDDEV / (2 * config.layers) ** 0.5, config.biases != "none"
        self._key_axis = "kv_heads" if config.is_grouped else "heads"
        axes = ("qkv", self._key_axis, "head_dim")
        self._kv_axes = ("batch", "seq", *axes)
        project = partial(projection, dtype=dtype, rngs=rngs)
        if config.is_grouped:
            self.query = project(width, heads, ("embed",), ("heads", "head_dim"), INIT_STDDEV, use_bias=has_bias)
            self.kv = project(width, keys, ("embed",), axes, INIT_STDDEV, use_bias=has_bias)
        else:
            self.qkv = project(width, (3, *heads), ("embed",), axes, INIT_STDDEV, use_bias=has_bias)
        has_bias = config.biases in ("all", "attention")
        self.out = project(heads, width, ("heads", "head_dim"), ("embed",), stddev, use_bias=has_bias)
        self.query_norm = heads_norm(config, config.heads, "heads", dtype)
        self.key_norm = heads_norm(config, config.key_heads, self._key_axis, dtype)

    def __call__(self, x: jax.Array, is_local: bool = False) -> jax.Array:
        """Maps [B, T, D] to [B, T, D]; `is_local`: the layer has a window."""
        config = self._config
        kernel = self._kernels.of(x.shape[1], token_groups()[1])
        query, kv = self._projected(x)
        if config.rope or self.query_norm:
            query, kv = self._positioned(query, kv, is_local, "splash" in kernel)
        kv_axes = keys_and_values(self._key_axis, kernel)
        kv = shard(kv, *kv_axes, gradient=self._kv_axes, name="blocks.attention.kv")
        scale = config.score_width**-0.5 if config.score_width else None
        scores = Scores(scale, config.window if is_local else 0, config.score_cap)
        mixed = shard(attend(query, kv, kernel, scores), *QUERY, name="blocks.attention.mixed")  # [B, T, N, H]
        sharding = out_sharding(x.shape, "batch", "seq", "activation_embed")
        return checkpoint_name(self.out(checkpoint_name(mixed, "context"), out_sharding=sharding), "out_proj")

    def _projected(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns queries [B, T, N, H], and keys and values [B, T, 2, K, H]."""
        axes = self._kv_axes
        if not self._config.is_grouped:
            shape = (*x.shape[:2], 3, *self.qkv.out_features[1:])
            qkv = self.qkv(x, out_sharding=out_sharding(shape, *axes))
            qkv = checkpoint_name(shard(qkv, *axes, name="blocks.attention.qkv"), "qkv_proj")
            return qkv[:, :, 0], qkv[:, :, 1:]
        query = self.query(x, out_sharding=out_sharding((*x.shape[:2], *self.query.out_features), *QUERY))
        kv = self.kv(x, out_sharding=out_sharding((*x.shape[:2], *self.kv.out_features), *axes))
        query = checkpoint_name(shard(query, *QUERY, name="blocks.attention.query"), "qkv_proj")
        return query, checkpoint_name(shard(kv, *axes, name="blocks.attention.own_kv"), "qkv_proj")

    def _positioned(
        self, query: jax.Array, kv: jax.Array, is_local: bool, is_on_tpu: bool
    ) -> tuple[jax.Array, jax.Array]:
        config, key = self._config, kv[:, :, 0]
        if self.query_norm and self.key_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        if rope := (is_local and config.local_rope) or config.rope:
            query, key = (rotated(x, rope, is_on_tpu) for x in (query, key))
        return query, jnp.stack([key, kv[:, :, 1]], axis=2)


def rotated(x: jax.Array, rope: Rope, is_on_tpu: bool) -> jax.Array:
    """Rotates queries or keys [B, T, N, H] by their positions, dim h paired with h + H ÷ 2, as in `transformers`."""
    frequencies, factor = scaled_frequencies(rope, x.shape[-1], x.shape[1])
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequencies.astype(np.float32)  # [T, 1, H ÷ 2]
    cos, sin = jnp.cos(angles) * factor, jnp.sin(angles) * factor
    if is_on_tpu:
        return _rotated_by_product(x, jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


@jax.custom_vjp
def _rotated_by_product(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Swaps the halves of [B, T, N, H] by a product with a permutation, which is exact: the TPU compiler would give
    registers of 128 elements to halves of 64. The gradient is rotated back."""
    width = x.shape[-1]
    swap = jnp.roll(jnp.eye(width, dtype=x.dtype), width // 2, axis=0)
    swapped = jnp.einsum("BTNH,HG->BTNG", x, swap, precision="highest")
    return (x * cos + swapped * sin).astype(x.dtype)


_rotated_by_product.defvjp(
    lambda x, cos, sin: (_rotated_by_product(x, cos, sin), (cos, sin)),
    lambda turn, gradient: (_rotated_by_product(gradient, turn[0], -turn[1]), None, None),
)


def scaled_frequencies(rope: Rope, width: int, seq_len: int) -> tuple[np.ndarray, float]:
    """Returns radians per position, float64 [H ÷ 2], for heads of this width, and the factor of sine and cosine."""
    exponents, theta = np.arange(0, width, 2) / width, rope.theta
    if rope.scaling == "dynamic":
        longer = max(seq_len, rope.original_context) / rope.original_context
        theta *= (rope.factor * longer - (rope.factor - 1)) ** (width / (width - 2))
    plain = theta**-exponents
    match rope.scaling:
        case "none" | "dynamic":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, plain), 1.0
        case "yarn":
            found = rope.attention_factor
            return _yarn(rope, plain, width), 0.1 * math.log(max(1.0, rope.factor)) + 1.0 if found is None else found


def _llama3(rope: Rope, plain: np.ndarray) -> np.ndarray:
    """Blends over the waves between the two lengths (Meta's reference code of Llama 3.1)."""
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    kept = np.clip((rope.original_context * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    return plain * (kept + (1 - kept) / rope.factor)


def _yarn(rope: Rope, plain: np.ndarray, width: int) -> np.ndarray:
    """Blends over the dims between the two numbers of rotations (Peng et al. 2023, "YaRN", section 3.2)."""
    first, last = (
        width * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
        for rotations in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    divided = np.clip((np.arange(width // 2) - first) / (last - first or 0.001), 0, 1)
    return plain * (1 - divided + divided / rope.factor)
