"""Routes tokens to the experts of a mixture, and computes experts without a capacity by ragged products.

Dims: B batch, T sequence, D embed, F mlp, E experts, C capacity, K experts per token. On one device: b, t, e and f of
them, and N = b · t · K rows, each a token for one of its experts.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..parallel.constraints import mesh_axes, per_device, shard, split_axes
from ..spec.preset import Axes


class Routing(NamedTuple):
    """The expert slots of each token, per sequence."""

    dispatch: jax.Array
    """float32 [B, T, E, C]: 1 where a token occupies an expert's slot, else 0."""
    combine: jax.Array
    """float32 [B, T, E, C]: the token's weight for that expert's output, 0 where the token has no slot."""
    balance: jax.Array
    """float32 [B]: the balance loss, 1 if all experts are equally preferred."""


def route(probabilities: jax.Array, per_token: int, capacity: int) -> Routing:
    """Routes each token to its `per_token` most probable experts with one of their `capacity` slots left, earlier
    tokens first. `probabilities` [B, T, E] are the router's. GShard serves the first choices of all tokens before any
    second choice (Lepikhin et al. 2020, algorithm 1), but then a token's slots depend on later tokens, which a decoder
    must not see. One expert's output is weighted by its probability (Fedus et al. 2021, "Switch Transformers", equation
    2), several outputs by their normalised probabilities (GShard). The balance loss of a sequence is E · Σ f · P over
    the experts, where f is the fraction of tokens whose first choice is the expert and P its mean probability (Switch,
    equations 4 to 6)."""
    batch, seq, experts = probabilities.shape
    masks = _top_experts(probabilities, per_token)
    order = masks.reshape(batch, -1, experts)  # [B, T·K, E]
    positions = jnp.sum((jnp.cumsum(order, axis=1) - order) * order, axis=-1).astype(jnp.int32)
    slots = jax.nn.one_hot(positions.reshape(batch, seq, per_token), capacity)  # [B, T, K, C], 0 beyond the capacity
    weights = _weights(masks, probabilities)
    dispatch = jnp.einsum("BTKE,BTKC->BTEC", masks, slots)
    combine = jnp.einsum("BTKE,BTKC->BTEC", masks * weights[..., None], slots, precision="highest")
    return Routing(dispatch, combine, _balance(masks, probabilities))


def weights_of_all(probabilities: jax.Array, per_token: int) -> tuple[jax.Array, jax.Array]:
    """Returns each expert's weight for each token, float32 [B, T, E], 0 where not routed, and the balance loss [B], as
    `route` does with slots for all tokens."""
    masks = _top_experts(probabilities, per_token)
    weights = jnp.einsum("BTKE,BTK->BTE", masks, _weights(masks, probabilities), precision="highest")
    return weights, _balance(masks, probabilities)


def choose(probabilities: jax.Array, per_token: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns each token's experts, int32 [B, T, K], their weights, float32 [B, T, K], and the balance loss [B]."""
    masks = _top_experts(probabilities, per_token)
    return jnp.argmax(masks, axis=-1), _weights(masks, probabilities), _balance(masks, probabilities)


def _weights(masks: jax.Array, probabilities: jax.Array) -> jax.Array:
    weights = jnp.einsum("BTKE,BTE->BTK", masks, probabilities, precision="highest")
    return weights / weights.sum(axis=-1, keepdims=True) if masks.shape[2] > 1 else weights


def _balance(masks: jax.Array, probabilities: jax.Array) -> jax.Array:
    return masks.shape[-1] * jnp.sum(masks[:, :, 0].mean(axis=1) * probabilities.mean(axis=1), axis=-1)


def _top_experts(probabilities: jax.Array, per_token: int) -> jax.Array:
    """Returns the most probable experts of each token as one-hot vectors, best first, float32 [B, T, K, E]."""
    masks: list[jax.Array] = []
    for _ in range(per_token):
        remaining = probabilities - 2 * sum(masks)  # probabilities are at most 1, so a chosen expert drops below 0
        masks.append(jax.nn.one_hot(jnp.argmax(remaining, axis=-1), probabilities.shape[-1]))
    return shard(jnp.stack(masks, axis=2), "batch", "keys", None, "router", name="blocks.mlp.masks")


class Kernels(NamedTuple):
    """The parameters of the experts, in the compute dtype."""

    up: jax.Array
    """[E, D, F], as the gate; `down`: [E, F, D]."""
    gate: jax.Array | None
    """None without a gate."""
    down: jax.Array


def ragged_experts(
    x: jax.Array, chosen: jax.Array, weights: jax.Array, kernels: Kernels, activation: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Returns the weighted sum [B, T, D] of the results of the experts `chosen` (int32 [B, T, K]) for `x` [B, T, D]. A
    device sorts its tokens by expert and computes each with its experts only (Gale et al. 2022, "MegaBlocks"). Axes of
    the mesh that split the experts or F share their tokens: all compute the rows of their own experts, in buffers for
    all rows, and the results are summed."""
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
    own = jnp.moveaxis(chosen, -1, 0).reshape(-1) - first  # [N], N = K·b·t
    own = jnp.where((own >= 0) & (own < experts), own, experts)  # rows of other devices' experts last
    order = jnp.argsort(own)
    sizes = jnp.bincount(own, length=experts + 1)[:experts]
    used = (jnp.arange(len(own)) < sizes.sum())[:, None]  # a ragged product defines no rows behind its groups
    rows = jnp.tile(x.reshape(-1, x.shape[-1]), (per_token, 1))
    rows = jnp.where(used, _permuted(rows, order), 0)
    hidden = [checkpoint_name(jax.lax.ragged_dot(rows, kernel, sizes), "mlpwi") for kernel in into]
    rows = activation(hidden[-1]) * hidden[0] if len(hidden) == 2 else activation(hidden[0])
    rows = checkpoint_name(jax.lax.ragged_dot(rows, down, sizes), "mlpwo")
    rows = _permuted(jnp.where(used, rows, 0), jnp.argsort(order)).reshape(per_token, *x.shape)
    return jnp.einsum("BTK,KBTD->BTD", weights, rows)


def _permuted(rows: jax.Array, order: jax.Array) -> jax.Array:
    return rows.at[order].get(unique_indices=True, mode="promise_in_bounds")
