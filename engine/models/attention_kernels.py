"""Causal attention: plain, compiled from products and a softmax, or in a way that never holds all scores.

Dims as in decoder.py: B sequences of T tokens, N heads of width H.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ..parallel.constraints import left_to_compiler, mesh_axes, per_device, token_groups
from ..spec.config import AttentionKernel
from .attention_tiles import Compiled, Splash, splash_kernel
from .ring_attention import ring_attention
from .sizes import AttentionKernels, query_block

QUERY = ("batch", "seq", "heads", "head_dim")
KEYS_AND_VALUES = ("batch", "keys", "qkv", "heads", "head_dim")
OWN_KEYS_AND_VALUES = ("batch", "seq", "qkv", "heads", "head_dim")
"""In a ring, where each device keeps those of its positions."""
KERNEL_QUERY, KERNEL_KV = ("batch", None, "heads", None), ("batch", None, None, "heads", None)
"""The same for a kernel, which needs whole sequences and whole heads."""
RING_QUERY, RING_KV = ("batch", "seq", "heads", None), ("batch", "seq", None, "heads", None)
"""The same for a ring, which needs whole heads."""


def kernel_of(kernels: AttentionKernels, seq_len: int) -> AttentionKernel:
    """Returns how attention is computed for sequences of this length under the active rules."""
    return kernels.of(seq_len, token_groups()[1])


def attend(query: jax.Array, kv: jax.Array, kernel: AttentionKernel) -> jax.Array:
    """Returns [B, T, N, H] for queries [B, T, N, H], and keys and values [B, T, 2, N, H].

    If the sequence is split over devices, plain attention computes all queries as one block.
    """
    match kernel:
        case "plain":
            seq, is_split = query.shape[1], token_groups()[1] > 1
            plain = partial(_plain, block=seq if is_split else query_block(seq))
            return left_to_compiler(plain, query, kv, out=QUERY)
        case "ring" | "ring-splash" | "ring-splash-interpreted":
            tiles = Compiled() if kernel == "ring" else Splash(interpret=kernel != "ring-splash")
            ring = partial(ring_attention, axes=mesh_axes("seq"), tiles=tiles)
            return per_device(ring, query, kv, axes=(RING_QUERY, RING_KV), out=RING_QUERY)
        case "cudnn":
            function = _cudnn
        case _:
            function = partial(_splash, interpret=kernel == "splash-interpreted")
    return per_device(function, query, kv, axes=(KERNEL_QUERY, KERNEL_KV), out=KERNEL_QUERY)


def _plain(query: jax.Array, kv: jax.Array, block: int) -> jax.Array:
    """Computes float32 scores for blocks of `block` queries, each with the keys up to its last query, and no others."""
    key, value = jnp.unstack(kv, axis=2)

    def attend_from(start: int) -> jax.Array:
        end = start + block
        mask = jnp.tril(jnp.ones((1, 1, block, end), bool), start)
        return jax.nn.dot_product_attention(query[:, start:end], key[:, :end], value[:, :end], mask=mask)

    return jnp.concatenate([attend_from(start) for start in range(0, query.shape[1], block)], axis=1)


def _cudnn(query: jax.Array, kv: jax.Array) -> jax.Array:
    """Holds one block of scores at a time, in cuDNN's kernel."""
    key, value = jnp.unstack(kv, axis=2)
    return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")


def _splash(query: jax.Array, kv: jax.Array, interpret: bool) -> jax.Array:
    """Holds one block of scores at a time. `interpret`: run the kernel as ordinary operations, which is slow."""
    heads, width = query.shape[2:]
    kernel = splash_kernel(heads, query.shape[1], is_causal=True, interpret=interpret)
    by_head = [x.swapaxes(1, 2) for x in (query * width**-0.5, *jnp.unstack(kv, axis=2))]  # [B, N, T, H]
    return jax.vmap(kernel)(*by_head).swapaxes(1, 2)
