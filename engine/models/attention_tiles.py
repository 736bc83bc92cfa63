"""Attention of some queries to some keys, and its gradients, without holding all of their scores.

Dims: m sequences, n heads of width H, t queries and as many keys. A tile is one sequence's and head's scores [t, t],
which are computed in blocks [k, k].
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .sizes import tile_block

RESULT = "attention result"
"""The name by which remat can save the residuals of a kernel or a ring."""


class Asked(NamedTuple):
    """Queries [m, n, t, H], and the values that determine the gradients of their scores."""

    query: jax.Array
    gradient: jax.Array
    """Of the result [m, n, t, H]."""
    normalizer: jax.Array
    """Log-sum-exp of a query's scores in all tiles: float32 [m, n, t]."""
    drop: jax.Array
    """The result of all tiles times its gradient, summed over H: float32 [m, n, t]."""


class Compiled:
    """Tiles made of products, on any platform."""

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Returns float32 [m, n, t, H], and the log-sum-exp of the scores in float32 [m, n, t].

        Loops over blocks of scores, with an online softmax.
        """
        query, key, value = map(_in_blocks, (query, key, value))
        rows = jnp.zeros(query.shape[:-1], jnp.float32)

        def step(seen: tuple[jax.Array, ...], pair: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
            row, column = pair
            old_peak, old_total, old_mixed = (x[row] for x in seen)
            scores = _scores(query[row], key[column], pair if is_causal else None)
            peak = jnp.maximum(old_peak, scores.max(axis=-1))
            kept, weights = jnp.exp(old_peak - peak), jnp.exp(scores - peak[..., None])
            mixed = _product("mnqk,mnkh->mnqh", weights.astype(value.dtype), value[column])
            new = peak, old_total * kept + weights.sum(axis=-1), old_mixed * kept[..., None] + mixed
            return tuple(old.at[row].set(x) for old, x in zip(seen, new, strict=True)), None

        nothing = rows - jnp.inf, rows, jnp.zeros(query.shape, jnp.float32)
        (peak, total, mixed), _ = jax.lax.scan(step, nothing, _pairs(len(query), is_causal))
        return _joined(mixed / total[..., None]), _joined(peak + jnp.log(total))

    def gradients(
        self, asked: Asked, key: jax.Array, value: jax.Array, is_causal: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the part of these scores in the gradients of queries, keys and values: float32 [m, n, t, H].

        Loops over the same blocks and computes each again.
        """
        asked, key, value = Asked(*map(_in_blocks, asked)), _in_blocks(key), _in_blocks(value)
        scale, dtype = key.shape[-1] ** -0.5, key.dtype

        def step(found: tuple[jax.Array, ...], pair: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
            row, column = pair
            query, gradient, normalizer, drop = (x[row] for x in asked)
            weights = jnp.exp(_scores(query, key[column], pair if is_causal else None) - normalizer[..., None])
            change = _product("mnqh,mnkh->mnqk", gradient, value[column]) - drop[..., None]
            change = (weights * change * scale).astype(dtype)
            return (
                found[0].at[row].add(_product("mnqk,mnkh->mnqh", change, key[column])),
                found[1].at[column].add(_product("mnqk,mnqh->mnkh", change, query)),
                found[2].at[column].add(_product("mnqk,mnqh->mnkh", weights.astype(dtype), gradient)),
            ), None

        zeros = jnp.zeros(key.shape, jnp.float32)
        (query, key, value), _ = jax.lax.scan(step, (zeros, zeros, zeros), _pairs(len(key), is_causal))
        return _joined(query), _joined(key), _joined(value)


class Splash:
    """Tiles of multiples of 128 tokens by jax's splash kernels for TPU. Its backward kernels take the log-sum-exp of
    all tiles; the function that calls them for one tile does not."""

    def __init__(self, interpret: bool) -> None:
        """`interpret`: run them as ordinary operations, which is slow, where there is no TPU."""
        self._interpret = interpret

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool
    ) -> tuple[jax.Array, jax.Array]:
        heads, tokens, width = query.shape[1:]
        kernel = splash_kernel(heads, tokens, is_causal, self._interpret, save_residuals=True)
        out, (normalizer,) = jax.vmap(kernel)(*(query * width**-0.5, key, value))
        return out.astype(jnp.float32), normalizer

    def gradients(
        self, asked: Asked, key: jax.Array, value: jax.Array, is_causal: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels

        heads, tokens, width = key.shape[1:]
        kernel = splash_kernel(heads, tokens, is_causal, self._interpret)
        block, layout = tile_block(tokens), kernels.QKVLayout.HEAD_DIM_MINOR
        options: Any = dict.fromkeys(("bq", "bkv"), block) | dict.fromkeys(("q_layout", "k_layout", "v_layout"), layout)
        options |= {"is_mqa": False, "mask_value": kernels.DEFAULT_MASK_VALUE, "attn_logits_soft_cap": None}
        options |= {"mask_function": kernel.kwargs["mask_function"], "interpret": self._interpret}

        @jax.vmap
        def each(
            query: jax.Array, gradient: jax.Array, normalizer: jax.Array, drop: jax.Array, *kv: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            given = query, *kv, None, None, normalizer, gradient, drop
            whole: Any = kernels
            own = whole._splash_attention_bwd_dq(*given, mask_info=kernel.dq_mask_info, **options)
            _, *others = whole._splash_attention_bwd_dkv(
                *given, mask_info=kernel.dkv_mask_info, bkv_compute=block, use_fused_bwd_kernel=False, **options
            )
            return own, *others

        scale = width**-0.5
        parts = each(asked.query * scale, *asked[1:], key, value)
        query, key, value = (part.astype(jnp.float32) for part in parts)
        return query * scale, key, value


Tiles = Compiled | Splash


def splash_kernel(
    heads: int,
    tokens: int,
    is_causal: bool,
    interpret: bool,
    save_residuals: bool = False,
    window: int = 0,
    cap: float = 0.0,
) -> Any:
    """Returns jax's splash attention for TPU: queries [n, t, H]; keys and values of n heads or fewer. It holds one
    block of scores at a time and skips those that the causal mask or the window removes."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # a second to import

    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: dict[str, Any] = {f"block_{name}": tile_block(tokens) for name in names}
    shape = tokens, tokens
    mask: Any = splash.CausalMask(shape) if is_causal else splash.FullMask(shape)
    if window:
        mask = splash.LocalMask(shape, (window - 1, 0), 0)
    return splash.make_splash_mha(
        splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(**blocks),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=RESULT,
        interpret=interpret,
        save_residuals=save_residuals,
        attn_logits_soft_cap=cap or None,
    )


def _scores(query: jax.Array, key: jax.Array, pair: jax.Array | None) -> jax.Array:
    """Returns float32 [m, n, k, k] of one block; with the indices of its queries and keys, those to come are masked."""
    scores = _product("mnqh,mnkh->mnqk", query, key) * query.shape[-1] ** -0.5
    if pair is None:
        return scores
    row, column = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, dim) for dim in (2, 3))
    return jnp.where((pair[0] - pair[1]) * query.shape[2] + row >= column, scores, -jnp.inf)


_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


def _pairs(blocks: int, is_causal: bool) -> jax.Array:
    """The blocks of scores to compute: pairs of a block of queries and a block of keys."""
    return jnp.array([(row, column) for row in range(blocks) for column in range(row + 1 if is_causal else blocks)])


def _in_blocks(x: jax.Array) -> jax.Array:
    """From [m, n, t, …] to [t ÷ k, m, n, k, …]."""
    block = tile_block(x.shape[2])
    return jnp.moveaxis(x.reshape(*x.shape[:2], -1, block, *x.shape[3:]), 2, 0)


def _joined(x: jax.Array) -> jax.Array:
    """The inverse of `_in_blocks`."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])
