"""Global norms of trees that are laid out like the parameters, summed over the mesh by one all-reduce."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..parallel.rules import axes_in
from .array import Scalars

Tree = Any


def global_norms(trees: Mapping[str, Tree], shardings: Tree | None) -> Scalars:
    """Returns the Euclidean norm, float32 [], of all elements of each tree. `shardings`: the layout of every tree on
    the active mesh; None without one."""
    leaves = [jax.tree.leaves(tree) for tree in trees.values()]
    if shardings is None:
        sums = _sums([1] * len(leaves[0]), leaves)
    else:
        each: list[NamedSharding] = jax.tree.leaves(shardings)
        specs = [[sharding.spec for sharding in each]] * len(leaves)
        local = partial(_sums, list(map(_copies, each)))
        axes = each[0].mesh.axis_names
        over_devices = jax.shard_map(
            lambda shards: jax.lax.psum(local(shards), axes),
            in_specs=(specs,),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        sums = over_devices(leaves)
    return dict(zip(trees, jnp.sqrt(sums), strict=True))


def _sums(copies: Sequence[int], trees: Sequence[Sequence[jax.Array]]) -> jax.Array:
    """Returns the sum of squares of each tree's shards, float32 [trees]; each shard counts 1 ÷ its copies."""
    sums = [
        [jnp.sum(jnp.square(x.astype(jnp.float32))) / count for x, count in zip(tree, copies, strict=True)]
        for tree in trees
    ]
    return jnp.stack(list(map(sum, sums)))


def _copies(sharding: NamedSharding) -> int:
    """Returns how many devices hold the same shard."""
    split = axes_in(sharding.spec)
    return math.prod(size for axis, size in sharding.mesh.shape.items() if axis not in split)
