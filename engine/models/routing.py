"""Routes tokens to the experts of a mixture.

Dims: B batch, T sequence, E experts, C capacity, K experts per token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..parallel.constraints import shard


class Routing(NamedTuple):
    """Which expert slot each token gets, per sequence."""

    dispatch: jax.Array
    """float32 [B, T, E, C]: 1 where a token occupies an expert's slot, else 0."""
    combine: jax.Array
    """float32 [B, T, E, C]: the token's weight for that expert's output, 0 where the token has no slot."""
    balance: jax.Array
    """float32 [B]: the balance loss, 1 if all experts are equally preferred."""


def route(probabilities: jax.Array, per_token: int, capacity: int) -> Routing:
    """Routes each token to its `per_token` most probable experts that have one of their `capacity` slots left.

    `probabilities` [B, T, E] are the router's. Earlier tokens get slots first. GShard serves the first choices of all
    tokens before any second choice (Lepikhin et al. 2020, algorithm 1), but then a token's slots depend on later
    tokens, which a decoder must not see.

    One expert's output is weighted by its probability (Fedus et al. 2021, "Switch Transformers", equation 2), several
    outputs by their normalised probabilities (GShard). The balance loss of a sequence is E · Σ f · P over the experts,
    where f is the fraction of tokens whose first choice is the expert and P its mean probability (Switch, equations 4
    to 6).
    """
    batch, seq, experts = probabilities.shape
    masks = shard(_top_experts(probabilities, per_token), "batch", "keys", None, "router", name="blocks.mlp.masks")
    order = masks.reshape(batch, -1, experts)  # [B, T·K, E]
    positions = jnp.sum((jnp.cumsum(order, axis=1) - order) * order, axis=-1).astype(jnp.int32)
    slots = jax.nn.one_hot(positions.reshape(batch, seq, per_token), capacity)  # [B, T, K, C], 0 beyond the capacity
    weights = _weights(masks, probabilities)
    dispatch = jnp.einsum("BTKE,BTKC->BTEC", masks, slots)
    combine = jnp.einsum("BTKE,BTKC->BTEC", masks * weights[..., None], slots, precision="highest")
    return Routing(dispatch, combine, _balance(masks, probabilities))


def weights_of_all(probabilities: jax.Array, per_token: int) -> tuple[jax.Array, jax.Array]:
    """Returns the weight of each expert for each token, float32 [B, T, E], and the balance loss [B].

    They are those of `route` if all experts have slots for all tokens; 0 for experts that a token is not routed to.
    """
    masks = shard(_top_experts(probabilities, per_token), "batch", "keys", None, "router", name="blocks.mlp.masks")
    weights = jnp.einsum("BTKE,BTK->BTE", masks, _weights(masks, probabilities), precision="highest")
    return weights, _balance(masks, probabilities)


def choose(probabilities: jax.Array, per_token: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns each token's experts, int32 [B, T, K], their weights, float32 [B, T, K], and the balance loss [B].

    They are those of `weights_of_all`.
    """
    masks = shard(_top_experts(probabilities, per_token), "batch", "keys", None, "router", name="blocks.mlp.masks")
    return jnp.argmax(masks, axis=-1), _weights(masks, probabilities), _balance(masks, probabilities)


def _weights(masks: jax.Array, probabilities: jax.Array) -> jax.Array:
    """Returns the weights [B, T, K] of a token's experts."""
    weights = jnp.einsum("BTKE,BTE->BTK", masks, probabilities, precision="highest")
    return weights / weights.sum(axis=-1, keepdims=True) if masks.shape[2] > 1 else weights


def _balance(masks: jax.Array, probabilities: jax.Array) -> jax.Array:
    """Returns the balance loss [B]."""
    return masks.shape[-1] * jnp.sum(masks[:, :, 0].mean(axis=1) * probabilities.mean(axis=1), axis=-1)


def _top_experts(probabilities: jax.Array, per_token: int) -> jax.Array:
    """Returns the most probable experts of each token as one-hot vectors, best first, float32 [B, T, K, E]."""
    masks: list[jax.Array] = []
    for _ in range(per_token):
        remaining = probabilities - 2 * sum(masks)  # probabilities are at most 1, so a chosen expert drops below 0
        masks.append(jax.nn.one_hot(jnp.argmax(remaining, axis=-1), probabilities.shape[-1]))
    return jnp.stack(masks, axis=2)
