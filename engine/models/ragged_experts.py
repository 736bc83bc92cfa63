"""Experts without a capacity that compute only the tokens routed to them, by ragged products.

Dims: B batch, T sequence, D embed, F mlp, E experts, K experts per token. On one device: b, t, e and f of them, and
N = b · t · K rows, each a token for one of its experts.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..parallel.constraints import mesh_axes, per_device, split_axes
from ..spec.preset import Axes


class Kernels(NamedTuple):
    """The parameters of the experts, in the compute dtype."""

    up: jax.Array
    """[E, D, F]."""
    gate: jax.Array | None
    """[E, D, F]; None without a gate."""
    down: jax.Array
    """[E, F, D]."""


def ragged_experts(
    x: jax.Array, chosen: jax.Array, weights: jax.Array, kernels: Kernels, activation: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Returns the weighted sum [B, T, D] of what a token's experts make of it.

    `x` [B, T, D]; `chosen` int32 and `weights` [B, T, K]: each token's experts, and their weights. A device sorts its
    tokens by expert and computes each with its experts only (Gale et al. 2022, "MegaBlocks"). Axes of the mesh that
    split the experts or F share their tokens: all compute the rows of their own experts, in buffers for all rows, and
    the results are summed.
    """
    tokens, into = _logical_axes()
    expert_axes, _, hidden_axes = split_axes(kernels.up.shape, *into)
    arrays = [x, chosen, weights, *(kernel for kernel in kernels if kernel is not None)]
    back = into[0], into[2], into[1]
    axes = [tokens, tokens, tokens, *[into] * (len(arrays) - 4), back]
    function = partial(_on_device, activation=activation, expert_axes=expert_axes)
    return per_device(function, *arrays, axes=axes, out=tokens, summed_over=expert_axes + hidden_axes)


def _logical_axes() -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """Returns the logical axes of tokens [B, T, D] and of kernels [E, D, F]; no mesh axis splits both."""
    batch, seq, experts, hidden = (set(mesh_axes(name)) for name in ("expert_batch", "seq", "experts", "mlp"))
    hidden_dim = None if batch & hidden else "mlp"
    seq_dim = None if seq & (experts | hidden) else "seq"
    return ("expert_batch", seq_dim, None), ("experts", None, hidden_dim)


def _on_device(
    x: jax.Array,
    chosen: jax.Array,
    weights: jax.Array,
    *kernels: jax.Array,
    activation: Callable[[jax.Array], jax.Array],
    expert_axes: Axes,
) -> jax.Array:
    """Returns this device's part of the sum, [b, t, D], from `x` [b, t, D] and its e experts."""
    *into, down = kernels
    experts, per_token = len(down), chosen.shape[-1]
    first = jax.lax.axis_index(expert_axes) * experts if expert_axes else 0
    own = chosen.reshape(-1) - first  # [N]
    own = jnp.where((own >= 0) & (own < experts), own, experts)  # those of other devices' experts last
    order = jnp.argsort(own)
    sizes = jnp.bincount(own, length=experts + 1)[:experts]
    used = (jnp.arange(len(own)) < sizes.sum())[:, None]  # a ragged product defines no rows behind its groups
    rows = jnp.repeat(x.reshape(-1, x.shape[-1]), per_token, axis=0)
    rows = jnp.where(used, _permuted(rows, order), 0)
    hidden = [checkpoint_name(jax.lax.ragged_dot(rows, kernel, sizes), "mlpwi") for kernel in into]
    rows = activation(hidden[-1]) * hidden[0] if len(hidden) == 2 else activation(hidden[0])
    rows = checkpoint_name(jax.lax.ragged_dot(rows, down, sizes), "mlpwo")
    rows = _permuted(jnp.where(used, rows, 0), jnp.argsort(order)).reshape(*chosen.shape, -1)  # [b, t, K, D]
    return jnp.einsum("BTK,BTKD->BTD", weights, rows)


def _permuted(rows: jax.Array, order: jax.Array) -> jax.Array:
    return rows.at[order].get(unique_indices=True, mode="promise_in_bounds")
