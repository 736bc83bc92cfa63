"""Causal attention of a sequence that is split over devices: they pass keys and values round and hold no [T, T] scores.

Exact: each device combines its attention to the keys so far by an online softmax (Liu et al. 2023, "Ring Attention with
Blockwise Transformers"). In the backward pass the queries go round, and scores are computed again from the saved
log-sum-exp. In order, the causal mask would leave the first device idle most of the time (Brandon et al. 2023,
"Striped Attention"), so each device takes one chunk from the beginning of the sequence and one from its end: then all
have the same work at every hop, two tiles of scores that the mask leaves whole.

Dims as in decoder.py, on one device: b sequences, n heads of width H, two chunks of c tokens. S devices hold the
sequence, as 2·S chunks.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ..spec.preset import Axes
from .attention_tiles import RESULT, Asked, Tiles

Pairs = list[tuple[int, int]]
KeysAndValues = tuple[jax.Array, jax.Array]
DIAGONAL, BELOW = [[0, 0], [1, 1]], [[1, 0]]
"""A device's tiles of its own queries and keys: on the diagonal, where the mask leaves half, and below it."""


class Seen(NamedTuple):
    """Attention to the keys so far."""

    out: jax.Array
    """float32 [2, b, n, c, H]."""
    normalizer: jax.Array
    """The log-sum-exp of their scores, float32 [2, b, n, c]."""


class Gradients(NamedTuple):
    """Gradients, float32 [2, b, n, c, H]."""

    query: jax.Array
    key: jax.Array
    value: jax.Array


def ring_attention(query: jax.Array, kv: jax.Array, axes: Axes, tiles: Tiles) -> jax.Array:
    """Returns [b, 2·c, n, H] for a device's queries [b, 2·c, n, H], keys and values [b, 2·c, 2, n, H], inside a
    `shard_map` whose mesh axes `axes` split the sequence."""
    chunks = [_balanced(x.swapaxes(1, 2), axes) for x in (query, *jnp.unstack(kv, axis=2))]
    return _in_order(_attend(*chunks, axes, tiles), axes).swapaxes(1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attend(query: jax.Array, key: jax.Array, value: jax.Array, axes: Axes, tiles: Tiles) -> jax.Array:
    """Returns [2, b, n, c, H] for balanced queries, keys and values [2, b, n, c, H]."""
    return _forward(query, key, value, axes, tiles)[0]


def _forward(query: jax.Array, key: jax.Array, value: jax.Array, axes: Axes, tiles: Tiles) -> tuple[jax.Array, Any]:
    devices, see = jax.lax.axis_size(axes), partial(_see, tiles, query)

    def hop(carry: Any, step: jax.Array) -> tuple[Any, None]:
        seen, visitor = carry
        following = _send(visitor, axes)  # while this visitor is seen
        return (see(seen, visitor, _pairs(axes, step)), following), None

    visitor = _send((key, value), axes)
    seen = Seen(jnp.zeros(query.shape, jnp.float32), jnp.full(query.shape[:-1], -jnp.inf, jnp.float32))
    seen = see(see(seen, (key, value), jnp.array(DIAGONAL), is_causal=True), (key, value), jnp.array(BELOW))
    (seen, visitor), _ = jax.lax.scan(hop, (seen, visitor), jnp.arange(1, devices - 1))
    seen = see(seen, visitor, _pairs(axes, devices - 1))
    found = query, key, value, seen.out.astype(query.dtype), seen.normalizer
    saved = tuple(checkpoint_name(each, RESULT) for each in found)
    return saved[3], saved


def _backward(axes: Axes, tiles: Tiles, saved: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
    query, key, value, out, normalizer = saved
    devices, zeros = jax.lax.axis_size(axes), jnp.zeros(query.shape, jnp.float32)
    drop = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), axis=-1)
    asked = Asked(query, gradient, normalizer, drop)
    answer = partial(_answer, tiles, (key, value))

    def next_answer(found: Gradients, visitor: Asked, step: jax.Array | int) -> Gradients:
        arriving = _send(found.query, axes)  # what others found for these queries, while this device computes
        found = answer(found._replace(query=zeros), visitor, _pairs(axes, step, of_queries=True))
        return found._replace(query=found.query + arriving)

    def hop(carry: Any, step: jax.Array) -> tuple[Any, None]:
        found, visitor = carry
        following = _send(visitor, axes)
        return (next_answer(found, visitor, step), following), None

    visitor = _send(asked, axes)
    found = answer(Gradients(zeros, zeros, zeros), asked, jnp.array(DIAGONAL), is_causal=True)
    found = answer(found, asked, jnp.array(BELOW))
    (found, visitor), _ = jax.lax.scan(hop, (found, visitor), jnp.arange(1, devices - 1))
    found = next_answer(found, visitor, devices - 1)
    home = found._replace(query=_send(found.query, axes))
    return tuple(each.astype(query.dtype) for each in home)


_attend.defvjp(_forward, _backward)


def _see(
    tiles: Tiles, query: jax.Array, seen: Seen, visitor: KeysAndValues, pairs: jax.Array, is_causal: bool = False
) -> Seen:
    """Adds tiles to the attention of queries. In a loop, because the compiler sends during loops, but not kernels."""
    key, value = visitor

    def step(seen: Seen, pair: jax.Array) -> tuple[Seen, None]:
        row, column = pair
        out, normalizer = tiles.attend(query[row], key[column], value[column], is_causal)
        both = jnp.logaddexp(seen.normalizer[row], normalizer)
        kept, added = (jnp.exp(each - both)[..., None] for each in (seen.normalizer[row], normalizer))
        new = seen.out[row] * kept + out * added
        return Seen(seen.out.at[row].set(new), seen.normalizer.at[row].set(both)), None

    return jax.lax.scan(step, seen, pairs)[0]


def _answer(
    tiles: Tiles, own: KeysAndValues, found: Gradients, asked: Asked, pairs: jax.Array, is_causal: bool = False
) -> Gradients:
    key, value = own

    def step(found: Gradients, pair: jax.Array) -> tuple[Gradients, None]:
        row, column = pair
        parts = tiles.gradients(Asked(*(x[row] for x in asked)), key[column], value[column], is_causal)
        places = row, column, column
        return Gradients(*(x.at[at].add(part) for x, at, part in zip(found, places, parts, strict=True))), None

    return jax.lax.scan(step, found, pairs)[0]


def _pairs(axes: Axes, step: jax.Array | int, of_queries: bool = False) -> jax.Array:
    """Returns the tiles that the mask leaves, as (chunk of queries, chunk of keys), with the keys, or the queries, from
    the device `step` places before. All later chunks come after all earlier ones; of two devices, the earlier chunk of
    the first comes first, and its later chunk last."""
    is_first = jax.lax.axis_index(axes) >= step  # the device that the visitor comes from
    same = jnp.where(is_first != of_queries, 0, 1)
    return jnp.stack([jnp.array([1, 0]), jnp.stack([same, same])])


def _send(x: Any, axes: Axes) -> Any:
    devices = jax.lax.axis_size(axes)
    return _permute(x, axes, [(device, (device + 1) % devices) for device in range(devices)])


def _permute(x: Any, axes: Axes, pairs: Pairs) -> Any:
    """Sends arrays between devices numbered as by `axis_index`. `ppermute` numbers them in the order of the mesh's
    axes, not of `axes` (jax 0.10.2, measured)."""
    names = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in axes]
    grid = np.arange(jax.lax.axis_size(axes)).reshape([jax.lax.axis_size(name) for name in names])
    numbers = grid.transpose([names.index(name) for name in axes]).ravel().tolist()
    return jax.lax.ppermute(x, tuple(names), [(numbers[source], numbers[target]) for source, target in pairs])


def _homes(axes: Axes) -> list[Pairs]:
    """Pairs of devices: where even chunks are in order and where they are when balanced, and the same for odd ones."""
    devices = jax.lax.axis_size(axes)
    return [
        [(chunk // 2, min(chunk, 2 * devices - 1 - chunk)) for chunk in range(parity, 2 * devices, 2)]
        for parity in (0, 1)
    ]


def _balanced(x: jax.Array, axes: Axes) -> jax.Array:
    """From chunks 2·i and 2·i + 1 on device i, [b, n, 2·c, H], to the chunks i and 2·S - 1 - i, [2, b, n, c, H]."""
    even, odd = (
        _permute(chunk, axes, homes) for chunk, homes in zip(jnp.split(x, 2, axis=2), _homes(axes), strict=True)
    )
    is_even = jax.lax.axis_index(axes) % 2 == 0
    return jnp.stack([jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)])


def _in_order(x: jax.Array, axes: Axes) -> jax.Array:
    """The inverse of `_balanced`."""
    is_even = jax.lax.axis_index(axes) % 2 == 0
    chunks = jnp.where(is_even, x[0], x[1]), jnp.where(is_even, x[1], x[0])
    back = [[(target, source) for source, target in homes] for homes in _homes(axes)]
    return jnp.concatenate([_permute(chunk, axes, homes) for chunk, homes in zip(chunks, back, strict=True)], axis=2)
