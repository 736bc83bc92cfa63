"""Rotary positions, with the scalings in use for long contexts."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from ..spec.model_config import Rope


def rotated(x: jax.Array, rope: Rope) -> jax.Array:
    """Rotates queries or keys [B, T, N, H] by their positions.

    Dim h and dim h + H ÷ 2 are a pair, as in the weights that `transformers` reads and writes.
    """
    frequencies, factor = scaled_frequencies(rope, x.shape[-1], x.shape[1])
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequencies.astype(np.float32)  # [T, 1, H ÷ 2]
    cos, sin = jnp.cos(angles) * factor, jnp.sin(angles) * factor
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


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
