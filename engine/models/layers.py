"""Applies the stacked layers of a decoder, one after the other, in a loop."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from .blocks import Block

Apply = Callable[[Block, jax.Array, jax.Array | None, jax.Array], tuple[jax.Array, jax.Array | None]]
"""Maps a block, the residual stream [B, T, D], the key of dropout and the indices of the examples to the stream and the
balance loss [B]."""


def scan_layers(
    bodies: tuple[Apply, ...], blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """Applies blocks whose arrays are stacked, [L, …], and returns the stream and the balance losses [L, B].

    `bodies` apply the layers of one period, if layers alternate. The loop's body applies a period; the layers that are
    left after the last whole one follow it.
    """
    if len(bodies) == 1:
        return _scan(bodies[0], blocks, x, keys, examples)

    def apply_period(
        blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        found: list[jax.Array | None] = []
        for layer in range(_layers(blocks)):
            block = _part(blocks, partial(jax.lax.index_in_dim, index=layer, keepdims=False))
            x, balance = bodies[layer](block, x, None if keys is None else keys[layer], examples)
            found.append(balance)
        return x, _joined(jnp.stack, found)

    layers, balances = _layers(blocks), list[jax.Array | None]()
    whole = layers // len(bodies) * len(bodies)
    for start, end, period in ((0, whole, len(bodies)), (whole, layers, layers - whole)):
        if start < end:
            part = partial(_in_periods, start=start, end=end, period=period)
            x, found = _scan(apply_period, _part(blocks, part), x, None if keys is None else part(keys), examples)
            balances.append(None if found is None else found.reshape(end - start, -1))
    return x, _joined(jnp.concatenate, balances)


def _layers(blocks: Block) -> int:
    return len(jax.tree.leaves(nnx.state(blocks, nnx.Param))[0])


def _in_periods(array: jax.Array, start: int, end: int, period: int) -> jax.Array:
    return array[start:end].reshape(-1, period, *array.shape[1:])


def _joined(join: Callable[..., jax.Array], balances: list[jax.Array | None]) -> jax.Array | None:
    return None if balances[0] is None else join(balances)


def _scan(
    body: Apply, blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    scan = nnx.scan(
        body,
        in_axes=(0, nnx.Carry, None if keys is None else 0, None),
        out_axes=(nnx.Carry, 0),
        transform_metadata={nnx.PARTITION_NAME: "layers"},
    )
    return scan(blocks, x, keys, examples)


def _part(blocks: Block, function: Callable[[jax.Array], jax.Array]) -> Block:
    """Returns the blocks with another part, or another shape, of each stacked array; its axis names stay."""
    graph, state = nnx.split(blocks)
    state = jax.tree.map(
        lambda variable: variable.replace(function(variable.get_value())),
        state,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    with nnx.use_eager_sharding(False):
        return nnx.merge(graph, state)
