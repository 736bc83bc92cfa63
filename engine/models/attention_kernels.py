"""Causal attention: plain, compiled from products and a softmax, or by a kernel that never holds all scores.

Dims as in decoder.py: B sequences of T tokens, N heads of width H.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..parallel.constraints import left_to_compiler, per_device, token_groups
from ..spec.config import AttentionKernel
from .sizes import splash_block

QUERY = ("batch", "seq", "heads", "head_dim")
KEYS_AND_VALUES = ("batch", "keys", "qkv", "heads", "head_dim")
KERNEL_QUERY, KERNEL_KV = ("batch", None, "heads", None), ("batch", None, None, "heads", None)
"""The same for a kernel, which needs whole sequences and whole heads."""


def attend(query: jax.Array, kv: jax.Array, kernel: AttentionKernel) -> jax.Array:
    """Returns [B, T, N, H] for queries [B, T, N, H], and keys and values [B, T, 2, N, H].

    If the sequence is split over devices, attention is plain.
    """
    if kernel == "plain" or token_groups()[1] > 1:
        return left_to_compiler(_plain, query, kv, out=QUERY)

    def splash(query: jax.Array, kv: jax.Array) -> jax.Array:
        return _splash(query, kv, interpret=kernel == "splash-interpreted")

    return per_device(splash, query, kv, axes=(KERNEL_QUERY, KERNEL_KV), out=KERNEL_QUERY)


def _plain(query: jax.Array, kv: jax.Array) -> jax.Array:
    """Holds all scores [B, N, T, T], in float32."""
    return jax.nn.dot_product_attention(query, *jnp.unstack(kv, axis=2), is_causal=True)


def _splash(query: jax.Array, kv: jax.Array, interpret: bool) -> jax.Array:
    """Holds one block of scores at a time and computes none that the causal mask removes. jax's Pallas kernel for TPU.

    `interpret`: run it as ordinary operations, which is slow, where there is no TPU.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # a second to import

    seq, heads, width = query.shape[1:]
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: dict[str, Any] = {f"block_{name}": splash_block(seq) for name in names}
    kernel: Any = splash.make_splash_mha(
        splash.MultiHeadMask([splash.CausalMask((seq, seq))] * heads),
        block_sizes=splash.BlockSizes(**blocks),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    by_head = [x.swapaxes(1, 2) for x in (query * width**-0.5, *jnp.unstack(kv, axis=2))]  # [B, N, T, H]
    return jax.vmap(kernel)(*by_head).swapaxes(1, 2)
