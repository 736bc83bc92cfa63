"""A fingerprint of each array's bits that does not depend on how it is sharded."""

from typing import Any

import jax
import jax.numpy as jnp


def digests(tree: Any) -> jax.Array:
    """uint32 [leaves]: for each leaf the wrapping sum of its bit patterns, each weighted by an odd number.

    Integer sums are exact in any order, so every sharding gives the same. The weight depends on the element's global
    index, so shards that changed places show; being odd it loses no bit, so any single changed bit shows.
    """
    return jnp.stack([_digest(leaf) for leaf in jax.tree.leaves(tree)])


def is_finite(tree: Any) -> jax.Array:
    """bool []: no element of any floating-point leaf is infinite or not a number."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def _digest(x: jax.Array) -> jax.Array:
    unsigned = jnp.dtype(f"uint{x.dtype.itemsize * 8}")
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    weight = jnp.zeros(x.shape, jnp.uint32)
    for dim, size in enumerate(x.shape):
        weight = weight * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    return jnp.sum(bits * (weight * jnp.uint32(2) + jnp.uint32(1)), dtype=jnp.uint32)
