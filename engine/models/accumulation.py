"""Gradient accumulation: a step in micro-batches, one after the other; each device computes its own rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..parallel.constraints import constrain, out_sharding, token_groups

Tree = Any
Gradients = Callable[[Tree, Tree, jax.Array, jax.Array], tuple[Tree, jax.Array, Tree]]
"""Maps variables, a micro-batch, its index [] and its examples' indices [b] to gradients, loss [] and variables."""


def accumulate(gradients: Gradients, variables: Tree, batch: Tree, arrays: Tree, zeros: Tree, count: int) -> Any:
    """Returns the mean gradients and loss of `count` micro-batches of `batch` [B, …], and the last variables. `arrays`
    describe the batch; `zeros` are like the gradients."""

    def add(carry: tuple[Tree, jax.Array, Tree], part: tuple[Tree, jax.Array, jax.Array]) -> tuple[Any, None]:
        total, loss, variables = carry
        found, value, variables = gradients(variables, *part)
        return (jax.tree.map(jnp.add, total, found), loss + value, variables), None

    size = len(jax.tree.leaves(batch)[0])
    parts = jax.tree.map(lambda array, x: _micro_batches(x, count, array.logical_axes[1:]), arrays, batch)
    examples = _micro_batches(constrain(jnp.arange(size), "batch"), count, ())
    start = zeros, jnp.zeros((), jnp.float32), variables
    (total, loss, variables), _ = jax.lax.scan(add, start, (parts, jnp.arange(count), examples))
    return jax.tree.map(lambda x: x / count, total), loss / count, variables


def _micro_batches(x: jax.Array, count: int, rest_axes: tuple[str | None, ...]) -> jax.Array:
    """Reshapes [B, …] to [count, B ÷ count, …]. Every micro-batch has rows of every device, so that none moves."""
    (groups, _), (batch, *rest) = token_groups(), x.shape
    shape = groups, count, batch // (groups * count), *rest
    x = x.reshape(shape, out_sharding=out_sharding(shape, "batch", None, None, *rest_axes)).swapaxes(0, 1)
    shape = count, batch // count, *rest
    x = x.reshape(shape, out_sharding=out_sharding(shape, None, "batch", *rest_axes))
    return constrain(x, None, "batch", *rest_axes)
