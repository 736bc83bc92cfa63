"""Flips bits in the living state of a run: in what one device holds of one array."""

import random
from dataclasses import dataclass

import jax
import numpy as np
from shardtui.engine.models.task import TrainState


@dataclass(frozen=True)
class Flip:
    """One bit of one element of a shard, in row-major order: of an array by its place among the leaves, on a device by
    its place in the mesh."""

    leaf: int
    device: int
    element: int
    bit: int


def random_flip(state: TrainState, chance: random.Random) -> Flip:
    """Returns a flip of a bit that is drawn from all bits of a random array, on a random device."""
    leaves = jax.tree.leaves(state)
    leaf = chance.randrange(len(leaves))
    shard = leaves[leaf].addressable_shards[0].data
    device = chance.randrange(len(leaves[leaf].sharding.mesh.devices.flat))
    return Flip(leaf, device, chance.randrange(shard.size), chance.randrange(8 * shard.dtype.itemsize))


def flipped(state: TrainState, flip: Flip) -> TrainState:
    """Returns the state with one bit flipped; all other shards are the same buffers."""
    leaves, treedef = jax.tree.flatten(state)
    array = leaves[flip.leaf]
    device = array.sharding.mesh.devices.flat[flip.device]
    shards = [_flipped(shard, flip) if shard.device == device else shard.data for shard in array.addressable_shards]
    leaves[flip.leaf] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
    return treedef.unflatten(leaves)


def _flipped(shard: jax.Shard, flip: Flip) -> jax.Array:
    held = np.array(shard.data)
    bits = held.reshape(-1).view(np.uint8)
    bits[flip.element * held.dtype.itemsize + flip.bit // 8] ^= 1 << flip.bit % 8
    return jax.device_put(held, shard.device)


def unequal_replicas(state: TrainState) -> set[int]:
    """Returns the places of arrays whose replicas differ, by comparing the bytes themselves."""
    found: set[int] = set()
    for place, leaf in enumerate(jax.tree.leaves(state)):
        held: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            own = np.asarray(shard.data).tobytes()
            if held.setdefault(str(shard.index), own) != own:
                found.add(place)
    return found
