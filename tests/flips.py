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
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    if device in shards:  # or another process has it
        held = np.array(shards[device])
        bits = held.reshape(-1).view(np.uint8)
        bits[flip.element * held.dtype.itemsize + flip.bit // 8] ^= 1 << flip.bit % 8
        shards[device] = jax.device_put(held, device)
    leaves[flip.leaf] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [*shards.values()])
    return treedef.unflatten(leaves)


def unequal_replicas(state: TrainState) -> set[int]:
    found: set[int] = set()
    for place, leaf in enumerate(jax.tree.leaves(state)):
        held: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            own = np.asarray(shard.data).tobytes()
            if held.setdefault(str(shard.index), own) != own:
                found.add(place)
    return found
