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


class Choices(NamedTuple):
    """The most probable experts of each token, best first."""

    masks: jax.Array
    """float32 [B, T, K, E]: one-hot."""
    weights: jax.Array
    """float32 [B, T, K]: of the experts' outputs."""
    balance: jax.Array
    """float32 [B]: the balance loss, 1 if all experts are equally preferred."""


def choose(probabilities: jax.Array, per_token: int) -> Choices:
    """Chooses the `per_token` most probable experts of each token; `probabilities` [B, T, E] are the router's. One
    expert's output is weighted by its probability (Fedus et al. 2021, "Switch Transformers", equation 2), several
    outputs by their normalised probabilities (GShard). The balance loss of a sequence is E · Σ f · P over the experts,
    where f is the fraction of tokens whose first choice is the expert and P its mean probability (Switch, equations 4
    to 6)."""
    experts, found = probabilities.shape[-1], list[jax.Array]()
    for _ in range(per_token):
        remaining = probabilities - 2 * sum(found)  # probabilities are at most 1, so a chosen expert drops below 0
        found.append(jax.nn.one_hot(jnp.argmax(remaining, axis=-1), experts))
    masks = shard(jnp.stack(found, axis=2), "batch", "keys", None, "router", name="blocks.mlp.masks")
    weights = jnp.einsum("BTKE,BTE->BTK", masks, probabilities, precision="highest")
    if per_token > 1:
        weights /= weights.sum(axis=-1, keepdims=True)
    balance = experts * jnp.sum(masks[:, :, 0].mean(axis=1) * probabilities.mean(axis=1), axis=-1)
    return Choices(masks, weights, balance)


def slots_of(choices: Choices, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Returns float32 [B, T, E, C] that are 1 where a token occupies one of its experts' `capacity` slots, and the
    token's weight there; 0 elsewhere. Earlier tokens come first. GShard serves the first choices of all tokens before
    any second choice (Lepikhin et al. 2020, algorithm 1), but then a token's slots depend on later tokens, which a
    decoder must not see."""
    batch, seq, per_token, experts = choices.masks.shape
    order = choices.masks.reshape(batch, -1, experts)  # [B, T·K, E]
    positions = jnp.sum((jnp.cumsum(order, axis=1) - order) * order, axis=-1).astype(jnp.int32)
    slots = jax.nn.one_hot(positions.reshape(batch, seq, per_token), capacity)  # [B, T, K, C], 0 beyond the capacity
    weighted = choices.masks * choices.weights[..., None]
    dispatch = jnp.einsum("BTKE,BTKC->BTEC", choices.masks, slots)
    return dispatch, jnp.einsum("BTKE,BTKC->BTEC", weighted, slots, precision="highest")


def weights_of_all(choices: Choices) -> jax.Array:
    """Returns each expert's weight for each token, float32 [B, T, E], 0 where not routed."""
    return jnp.einsum("BTKE,BTK->BTE", choices.masks, choices.weights, precision="highest")


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
