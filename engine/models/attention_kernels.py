"""Causal attention: plain, compiled from products and a softmax, or by a kernel that never holds all scores.

Dims as in decoder.py: B sequences of T tokens, N heads of width H.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ..parallel.constraints import left_to_compiler, per_device, token_groups
from ..spec.config import AttentionKernel
from .sizes import query_block, splash_block

QUERY = ("batch", "seq", "heads", "head_dim")
KEYS_AND_VALUES = ("batch", "keys", "qkv", "heads", "head_dim")
KERNEL_QUERY, KERNEL_KV = ("batch", None, "heads", None), ("batch", None, None, "heads", None)
"""The same for a kernel, which needs whole sequences and whole heads."""


def attend(query: jax.Array, kv: jax.Array, kernel: AttentionKernel) -> jax.Array:
    """Returns [B, T, N, H] for queries [B, T, N, H], and keys and values [B, T, 2, N, H].

    If the sequence is split over devices, attention is plain, and all queries are one block.
    """
    seq, is_split = query.shape[1], token_groups()[1] > 1
    if kernel == "plain" or is_split:
        plain = partial(_plain, block=seq if is_split else query_block(seq))
        return left_to_compiler(plain, query, kv, out=QUERY)

    def splash(query: jax.Array, kv: jax.Array) -> jax.Array:
        return _splash(query, kv, interpret=kernel == "splash-interpreted")

    return per_device(splash, query, kv, axes=(KERNEL_QUERY, KERNEL_KV), out=KERNEL_QUERY)


def _plain(query: jax.Array, kv: jax.Array, block: int) -> jax.Array:
    """Computes float32 scores for blocks of `block` queries, each with the keys up to its last query, and no others."""
    key, value = jnp.unstack(kv, axis=2)

    def attend_from(start: int) -> jax.Array:
        end = start + block
        mask = jnp.tril(jnp.ones((1, 1, block, end), bool), start)
        return jax.nn.dot_product_attention(query[:, start:end], key[:, :end], value[:, :end], mask=mask)

    return jnp.concatenate([attend_from(start) for start in range(0, query.shape[1], block)], axis=1)


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
