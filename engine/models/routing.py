"""Which expert of a mixture takes which token.

Dims: B batch, T sequence, E experts, C capacity, K experts of a token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..parallel.constraints import shard


class Routing(NamedTuple):
    """Where the tokens of each sequence go."""

    dispatch: jax.Array
    """float32 [B, T, E, C]: 1 where a token has a slot of an expert."""
    combine: jax.Array
    """float32 [B, T, E, C]: what the token takes of the expert's result; 0 where it does not go."""
    balance: jax.Array
    """float32 [B]: the balance loss, 1 where all experts are preferred alike."""


def route(choices: jax.Array, per_token: int, capacity: int) -> Routing:
    """By the router's probabilities `choices` [B, T, E], each token to the `per_token` experts that it prefers, as long
    as these have one of their `capacity` slots left. Earlier tokens come first. GShard has the first choices of all
    tokens before second ones (Lepikhin et al. 2020, algorithm 1), but then what is left for a token depends on later
    ones, which a decoder must not see.

    A token weighs one expert's result by its probability (Fedus et al. 2021, "Switch Transformers", equation 2), those
    of several by their parts in the sum (GShard). The balance loss of a sequence is E · Σ f · P over the experts, f
    being the part of the tokens whose first choice it is and P its mean probability (Switch, equations 4 to 6).
    """
    batch, seq, experts = choices.shape
    masks = shard(_preferred(choices, per_token), "batch", "keys", None, "router", name="blocks.mlp.masks")
    order = masks.reshape(batch, -1, experts)  # [B, T·K, E]
    places = jnp.sum((jnp.cumsum(order, axis=1) - order) * order, axis=-1).astype(jnp.int32)
    slots = jax.nn.one_hot(places.reshape(batch, seq, per_token), capacity)  # [B, T, K, C], no slot for those above
    weights = jnp.einsum("BTKE,BTE->BTK", masks, choices, precision="highest")
    if per_token > 1:
        weights /= weights.sum(axis=-1, keepdims=True)
    dispatch = jnp.einsum("BTKE,BTKC->BTEC", masks, slots)
    combine = jnp.einsum("BTKE,BTKC->BTEC", masks * weights[..., None], slots, precision="highest")
    balance = experts * jnp.sum(masks[:, :, 0].mean(axis=1) * choices.mean(axis=1), axis=-1)
    return Routing(dispatch, combine, balance)


def _preferred(choices: jax.Array, per_token: int) -> jax.Array:
    """The experts of each token, one-hot, the most probable first, float32 [B, T, K, E]."""
    masks: list[jax.Array] = []
    for _ in range(per_token):
        left = choices - 2 * sum(masks)  # probabilities are 1 at most
        masks.append(jax.nn.one_hot(jnp.argmax(left, axis=-1), choices.shape[-1]))
    return jnp.stack(masks, axis=2)
