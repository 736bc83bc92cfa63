"""Digests of arrays' bits that do not depend on how the arrays are sharded.

Each element's bits and its index in the global array are mixed into two words by non-linear steps: multiply, and fold
the high half onto the low one, as murmur3's finalisers do. The words are then summed with wrap-around. Integer sums are
exact in any order, so every sharding, mesh, device order and number of processes gives the same digest.

Two arrays that differ by accident have the same digest with probability of about 2⁻⁶⁴ (docs/faults.md lists what was
tried). It is not a cryptographic hash: collisions can be constructed.
"""

import hashlib
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ..parallel.rules import axes_in

U32 = jnp.uint32


def digests(tree: Any, shardings: Any = None) -> jax.Array:
    """Returns uint32 [leaves, 2]: 64 bits per leaf, from its shape, its dtype and the bits and indices of its elements.

    To be traced. With the leaves' `shardings`, as a tree, each device reads its own shard, and the words of all leaves
    are summed at once. Only the first copy of a replicated array counts: the copies may drift apart if a step is not
    deterministic.
    """
    leaves = jax.tree.leaves(tree)
    known = [None] * len(leaves) if shardings is None else jax.tree.leaves(shardings)
    return jnp.stack([_digest(leaf, sharding) for leaf, sharding in zip(leaves, known, strict=True)])


def shard_digests(tree: Any, shardings: Any) -> jax.Array:
    """Returns uint32 [devices, leaves, 2]: 64 bits of what each device of the mesh holds of each leaf.

    To be traced, with the leaves' `shardings`. Runs no collective: each device reads its own shards and keeps its own
    row. Devices that hold the same shard have equal words if its bits are equal.
    """
    leaves, known = jax.tree.leaves(tree), jax.tree.leaves(shardings)

    def of_device(*shards: jax.Array) -> jax.Array:
        return jnp.stack([_sum(shard, shard.shape, [0] * shard.ndim) for shard in shards])[None]

    specs = tuple(sharding.spec for sharding in known)
    mesh = known[0].mesh
    return jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(mesh.axis_names))(*leaves)


def joined(found: jax.Array) -> np.ndarray:
    """Joins the two words of each digest to one: uint32 [leaves, 2] to uint64 [leaves]."""
    high, low = np.asarray(found, np.uint64).T
    return high << 32 | low


def is_finite(tree: Any) -> jax.Array:
    """Returns bool []: whether all elements of all floating-point and complex leaves are finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves], bool).all()


@partial(jax.jit, static_argnums=1)
def _digest(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    found = _sum(x, x.shape, [0] * x.ndim) if sharding is None else _sum_on_devices(x, sharding)
    described = hashlib.sha256(f"{x.dtype} {x.shape}".encode()).digest()[:8]
    return found + np.frombuffer(described, "<u4")


def _sum_on_devices(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Returns `_sum` of the global array: each device sums its own shard, and of replicas only the first counts."""
    mesh, dims = sharding.mesh, [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    split = axes_in(sharding.spec)
    replicated = tuple(axis for axis in mesh.axis_names if axis not in split)

    def of_shard(shard: jax.Array) -> jax.Array:
        positions = [lax.axis_index(dim) if dim else 0 for dim in dims]
        is_first = lax.axis_index(replicated) == 0 if replicated else True
        return lax.psum(jnp.where(is_first, _sum(shard, x.shape, positions), U32(0)), mesh.axis_names)

    return jax.shard_map(of_shard, mesh=mesh, in_specs=sharding.spec, out_specs=PartitionSpec())(x)


def _sum(shard: jax.Array, shape: tuple[int, ...], positions: list[Any]) -> jax.Array:
    """Returns uint32 [2], the summed words of a shard: the `positions[dim]`-th along each dim of an array of `shape`.

    Both words are summed in one reduction, so that XLA reads the shard once and allocates no temporary of its size, on
    CPU too.
    """
    words = _words(shard)
    inner = words.shape[shard.ndim :]
    mixed = _mixed(words, _index(words.shape, shape + inner, [*positions, *[0] * len(inner)]))
    zero = U32(0)
    sums = lax.reduce(mixed, (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), tuple(range(words.ndim)))
    return jnp.stack(sums)


def _words(x: jax.Array) -> jax.Array:
    """Returns the array's bits as uint32 of its shape, with a further dim if an element takes several words."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _words(jnp.stack([lax.real(x), lax.imag(x)], axis=-1))
    if x.dtype.itemsize > 4:
        return lax.bitcast_convert_type(x, U32)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = lax.bitcast_convert_type(x, jnp.dtype(f"uint{jnp.finfo(x.dtype).bits}"))
    return x.astype(U32)


def _index(shard: tuple[int, ...], shape: tuple[int, ...], positions: list[Any]) -> list[jax.Array]:
    """Returns each element's row-major index in the global array, as one word, or two above 2³² elements."""
    is_wide = math.prod(shape) > 2**32
    with jax.enable_x64(is_wide):
        dtype, bits = (jnp.uint64, 64) if is_wide else (U32, 32)
        index, stride = jnp.zeros(shard, dtype), 1
        for dim in reversed(range(len(shard))):
            first = jnp.asarray(positions[dim], dtype) * dtype(shard[dim])
            index += (lax.broadcasted_iota(dtype, shard, dim) + first) * dtype(stride % 2**bits)
            stride *= shape[dim]
        return [index.astype(U32), (index >> dtype(32)).astype(U32)] if is_wide else [index]


def _mixed(words: jax.Array, index: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns two words per element. At one index, different values have different first words."""
    first = _fold_and_multiply(words, 16, 0x7FEB352D)
    for word in index:
        first = _fold_and_multiply(first + word * U32(0x9E3779B9), 15, 0x846CA68B)
        first = _fold_and_multiply(first, 13, 0xD35A2D97)
        first ^= first >> 16
    second = first
    for word in index:
        second = _fold_and_multiply((second ^ word) * U32(0x85EBCA6B), 13, 0xC2B2AE35)
        second ^= second >> 16
    return first, second


def _fold_and_multiply(x: jax.Array, shift: int, factor: int) -> jax.Array:
    return (x ^ x >> shift) * U32(factor)
