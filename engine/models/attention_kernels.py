"""Causal attention: plain, compiled from products and a softmax, or in a way that never holds all scores.

Dims as in decoder.py: B sequences of T tokens, N heads of width H.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from ..parallel.constraints import left_to_compiler, mesh_axes, per_device, token_groups
from ..spec.model_config import AttentionKernel
from .attention_tiles import Compiled, Splash, splash_kernel
from .ring_attention import ring_attention
from .sizes import query_block

QUERY = ("batch", "seq", "heads", "head_dim")
KERNEL_QUERY, KERNEL_KV = ("batch", None, "heads", None), ("batch", None, None, "heads", None)
"""For a kernel, which needs whole sequences and whole heads; a ring needs whole heads."""
RING_QUERY, RING_KV = ("batch", "seq", "heads", None), ("batch", "seq", None, "heads", None)


@dataclass(frozen=True)
class Scores:
    """Differences of a family's attention scores from GPT-2's."""

    scale: float | None = None
    """Their factor; None for 1 ÷ √H."""
    window: int = 0
    """Positions, with its own, that a token sees; 0 for all until its own."""
    cap: float = 0.0
    """Scores s become cap · tanh(s ÷ cap); 0 for no cap."""


ORDINARY = Scores()


def keys_and_values(heads: str, kernel: AttentionKernel) -> tuple[str, ...]:
    """Returns the logical axes of keys and values; in a ring each device keeps its own positions."""
    return "batch", "seq" if kernel.startswith("ring") else "keys", "qkv", heads, "head_dim"


def attend(query: jax.Array, kv: jax.Array, kernel: AttentionKernel, scores: Scores = ORDINARY) -> jax.Array:
    """Returns [B, T, N, H] for queries [B, T, N, H], and keys and values [B, T, 2, K, H], where K divides N. If the
    sequence is split over devices, plain attention computes all queries as one block. A ring and cuDNN take no window
    and no cap, and a ring passes round as many keys as queries have heads."""
    match kernel:
        case "plain":
            seq, is_split = query.shape[1], token_groups()[1] > 1
            plain = partial(_plain, block=seq if is_split else query_block(seq), scores=scores)
            return left_to_compiler(plain, query, kv, out=QUERY)
        case "ring" | "ring-splash" | "ring-splash-interpreted":
            tiles = Compiled() if kernel == "ring" else Splash(interpret=kernel != "ring-splash")
            ring = partial(ring_attention, axes=mesh_axes("seq"), tiles=tiles)
            if scores.scale is not None:
                query = query * (scores.scale * query.shape[-1] ** 0.5)
            return per_device(ring, query, _ungrouped(kv, query.shape[2]), axes=(RING_QUERY, RING_KV), out=RING_QUERY)
        case "cudnn":
            function = partial(_cudnn, scores=scores)
        case _:
            function = partial(_splash, interpret=kernel == "splash-interpreted", scores=scores)
    kv_axes = KERNEL_KV
    if mesh_axes("kv_heads") == mesh_axes("heads"):
        kv_axes = tuple("kv_heads" if axis == "heads" else axis for axis in KERNEL_KV)
    else:  # a device would not have the keys of its queries
        kv = _ungrouped(kv, query.shape[2])
    return per_device(function, query, kv, axes=(KERNEL_QUERY, kv_axes), out=KERNEL_QUERY)


def _ungrouped(kv: jax.Array, heads: int) -> jax.Array:
    """Repeats keys and values [B, T, 2, K, H] to [B, T, 2, N, H]."""
    return kv if kv.shape[3] == heads else jnp.repeat(kv, heads // kv.shape[3], axis=3)


def _plain(query: jax.Array, kv: jax.Array, block: int, scores: Scores) -> jax.Array:
    """Computes float32 scores of `block` queries at a time, only with keys up to the last query and in the window."""
    key, value = jnp.unstack(kv, axis=2)
    attention = partial(_capped, cap=scores.cap) if scores.cap else jax.nn.dot_product_attention

    def attend_from(start: int) -> jax.Array:
        end = start + block
        first = max(0, start - scores.window + 1) if scores.window else 0
        mask = jnp.tril(jnp.ones((1, 1, block, end - first), bool), start - first)
        if scores.window:
            mask = jnp.triu(mask, start - first - scores.window + 1)
        return attention(query[:, start:end], key[:, first:end], value[:, first:end], mask=mask, scale=scores.scale)

    return jnp.concatenate([attend_from(start) for start in range(0, query.shape[1], block)], axis=1)


def _capped(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, scale: float | None, cap: float
) -> jax.Array:
    """Is `jax.nn.dot_product_attention` with capped scores: query [B, t, N, H], keys and values [B, s, K, H]."""
    batch, queries, heads, width = query.shape
    grouped = query.reshape(batch, queries, key.shape[2], -1, width)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, key, preferred_element_type=jnp.float32)
    scores = cap * jnp.tanh(scores * (width**-0.5 if scale is None else scale) / cap)
    weights = jax.nn.softmax(jnp.where(mask[:, :, None], scores, -jnp.inf), axis=-1).astype(value.dtype)
    return jnp.einsum("BKGTS,BSKH->BTKGH", weights, value).reshape(batch, queries, heads, width)


def _cudnn(query: jax.Array, kv: jax.Array, scores: Scores) -> jax.Array:
    key, value = jnp.unstack(kv, axis=2)
    return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn", scale=scores.scale)


def _splash(query: jax.Array, kv: jax.Array, interpret: bool, scores: Scores) -> jax.Array:
    """Holds one block of scores at a time. `interpret`: run the kernel as ordinary operations, which is slow."""
    heads, width = query.shape[2:]
    kernel = splash_kernel(
        heads, query.shape[1], is_causal=True, interpret=interpret, window=scores.window, cap=scores.cap
    )
    scale = width**-0.5 if scores.scale is None else scores.scale
    by_head = [x.swapaxes(1, 2) for x in (query * scale, *jnp.unstack(kv, axis=2))]  # [B, N, T, H]
    return jax.vmap(kernel)(*by_head).swapaxes(1, 2)
