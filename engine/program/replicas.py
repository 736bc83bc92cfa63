"""Which devices hold the same shard of an array, and which of them differ."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ..parallel.rules import axes_in


class Differing(NamedTuple):
    """Devices whose shards differ from their replicas."""

    devices: list[int]
    """Their places in the mesh, in row-major order."""
    leaves: list[int]
    """The arrays that differ, as places among the leaves."""
    is_certain: bool
    """Whether most replicas agree that these devices are wrong. Of two replicas that differ, either may be."""


def first_holders(shardings: Sequence[NamedSharding]) -> np.ndarray:
    """Returns int [devices, leaves]: the place in the mesh of the first device that holds the same shard."""
    mesh = shardings[0].mesh
    splits = [axes_in(sharding.spec) for sharding in shardings]
    known = {split: _first_holders(mesh, split) for split in set(splits)}
    return np.stack([known[split] for split in splits], axis=1)


def differing(words: np.ndarray, first: np.ndarray) -> Differing | None:
    """Returns the devices that differ; None if all replicas are equal.

    `words`: uint64 [devices, leaves], digests of what each device holds; `first`: `first_holders`.
    """
    is_equal = words == np.take_along_axis(words, first, axis=0)
    if is_equal.all():
        return None
    leaves = np.flatnonzero(~is_equal.all(axis=0)).tolist()
    wrong: set[int] = set()
    undecided: set[int] = set()
    for leaf in leaves:
        for holder in np.unique(first[:, leaf]):
            replicas = np.flatnonzero(first[:, leaf] == holder)
            found, counts = np.unique(words[replicas, leaf], return_counts=True)
            if 2 * counts.max() > len(replicas):
                wrong.update(replicas[words[replicas, leaf] != found[counts.argmax()]].tolist())
            else:
                undecided.update(replicas.tolist())
    return Differing(sorted(wrong or undecided), leaves, bool(wrong))


def _first_holders(mesh: Mesh | AbstractMesh, split: frozenset[str]) -> np.ndarray:
    """Returns int [devices]. Replicas differ only in their indices on the axes that do not split the array."""
    places = np.arange(mesh.size).reshape(tuple(mesh.shape.values()))
    first = tuple(slice(None) if axis in split else slice(1) for axis in mesh.axis_names)
    return np.broadcast_to(places[first], places.shape).ravel()


def rows_of(words: jax.Array) -> dict[int, bytes]:
    """Returns the rows of a result by device that are in this process, by place in the mesh."""
    return {shard.index[0].start or 0: np.asarray(shard.data).tobytes() for shard in words.addressable_shards}
