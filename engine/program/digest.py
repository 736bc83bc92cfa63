"""A digest of each array's bits that does not depend on how it is sharded.

Each element's bits and its index in the whole array are mixed into two words, in steps that are not linear: multiply,
and fold the high half onto the low one, as the finalisers of murmur3 do. The words are then added up, wrapping. Sums of
integers are exact in any order, so every sharding, mesh, order of devices and number of processes gives the same.

Arrays that differ by accident have the same digest with odds of about 2⁻⁶⁴ (docs/faults.md has what was tried). It is
no cryptographic hash: who looks for two such arrays finds them.
"""

import hashlib
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

U32 = jnp.uint32


def digests(tree: Any, shardings: Any = None) -> jax.Array:
    """uint32 [leaves, 2]: for each leaf 64 bits of its shape, its dtype and the bits and places of all its elements.

    For jax and numpy arrays of every dtype. `shardings`: a tree of those that the leaves have, for a caller that traces
    this; with them each device reads its own shard, and the words of all leaves are added up at once. Of a replicated
    array the first copy counts: the copies of a step that is not deterministic may drift apart.
    """
    with jax.enable_x64(True):  # numpy's 64 bits are not cut off
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    known = map(_sharding, leaves) if shardings is None else jax.tree.leaves(shardings)
    found = [_digest(leaf, sharding) for leaf, sharding in zip(leaves, known, strict=True)]
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return jnp.stack(found)
    return jnp.asarray(np.stack(jax.device_get(found)))  # they may lie on different devices


def linear_sums(tree: Any) -> jax.Array:
    """uint32 [leaves]: what checkpoints held in the place of digests before, to check those by.

    A wrapping sum of bits, weighted by an odd number for each index. It is linear: an array and its negative have the
    same.
    """
    return jnp.stack([_linear_sum(leaf) for leaf in jax.tree.leaves(tree)])


def joined(found: jax.Array) -> np.ndarray:
    """uint64 [leaves] of the two words of each."""
    high, low = np.asarray(found, np.uint64).T
    return high << 32 | low


def is_finite(tree: Any) -> jax.Array:
    """bool []: no element of any floating-point or complex leaf is infinite or not a number."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves], bool).all()


def _sharding(leaf: jax.Array) -> NamedSharding | None:
    sharding = None if isinstance(leaf, Tracer) else leaf.sharding
    return sharding if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) else None


@partial(jax.jit, static_argnums=1)
def _digest(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    found = _added(x, x.shape, [0] * x.ndim) if sharding is None else _added_on_devices(x, sharding)
    described = hashlib.sha256(f"{x.dtype} {x.shape}".encode()).digest()[:8]
    return found + np.frombuffer(described, "<u4")


def _added_on_devices(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """As `_added` of the whole, each device from its own shard; of those that hold the same the first one counts."""
    mesh, dims = sharding.mesh, [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    split = {axis for dim in dims if dim for axis in ([dim] if isinstance(dim, str) else dim)}
    copies = tuple(axis for axis in mesh.axis_names if axis not in split)

    def of_shard(shard: jax.Array) -> jax.Array:
        places = [lax.axis_index(dim) if dim else 0 for dim in dims]
        is_first = lax.axis_index(copies) == 0 if copies else True
        return lax.psum(jnp.where(is_first, _added(shard, x.shape, places), U32(0)), mesh.axis_names)

    return jax.shard_map(of_shard, mesh=mesh, in_specs=sharding.spec, out_specs=PartitionSpec())(x)


def _added(shard: jax.Array, shape: tuple[int, ...], places: list[Any]) -> jax.Array:
    """uint32 [2]: of the shard that is the `places[dim]`-th along each dim of an array of that shape.

    Both words in one reduction: XLA then reads the shard once and keeps nothing of its size, on CPU too.
    """
    words = _words(shard)
    inner = words.shape[shard.ndim :]
    mixed = _mixed(words, _index(words.shape, shape + inner, [*places, *[0] * len(inner)]))
    zero = U32(0)
    added = lax.reduce(mixed, (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), tuple(range(words.ndim)))
    return jnp.stack(added)


def _words(x: jax.Array) -> jax.Array:
    """Its bits: uint32 of its shape, with more dims where an element takes several."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _words(jnp.stack([lax.real(x), lax.imag(x)], axis=-1))
    if x.dtype.itemsize > 4:
        return lax.bitcast_convert_type(x, U32)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = lax.bitcast_convert_type(x, jnp.dtype(f"uint{jnp.finfo(x.dtype).bits}"))
    return x.astype(U32)


def _index(shard: tuple[int, ...], shape: tuple[int, ...], places: list[Any]) -> list[jax.Array]:
    """Of each of the shard's elements in the whole array, row-major: a word, or two of an array that needs them."""
    is_wide = math.prod(shape) > 2**32
    with jax.enable_x64(is_wide):
        dtype = jnp.uint64 if is_wide else U32
        index, stride = jnp.zeros(shard, dtype), 1
        for dim in reversed(range(len(shard))):
            first = jnp.asarray(places[dim], dtype) * dtype(shard[dim])
            index += (lax.broadcasted_iota(dtype, shard, dim) + first) * dtype(stride % 2**64)
            stride *= shape[dim]
        return [index.astype(U32), (index >> dtype(32)).astype(U32)] if is_wide else [index]


def _mixed(words: jax.Array, index: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Two words for each element: no two values have the same first word at one index."""
    first = _multiplied(words, 16, 0x7FEB352D)
    for word in index:
        first = _multiplied(_multiplied(first + word * U32(0x9E3779B9), 15, 0x846CA68B), 13, 0xD35A2D97)
        first ^= first >> 16
    second = first
    for word in index:
        second = _multiplied((second ^ word) * U32(0x85EBCA6B), 13, 0xC2B2AE35)
        second ^= second >> 16
    return first, second


def _multiplied(x: jax.Array, shift: int, factor: int) -> jax.Array:
    return (x ^ x >> shift) * U32(factor)


def _linear_sum(x: jax.Array) -> jax.Array:
    unsigned = jnp.dtype(f"uint{x.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(x, unsigned).astype(U32)
    index = _index(x.shape, x.shape, [0] * x.ndim)[0]
    return jnp.sum(bits * (index * U32(2) + U32(1)), dtype=U32)
