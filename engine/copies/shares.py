"""Which shards of the state each process copies: of those that hold a shard, only one does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..program.leaves import bytes_of

Region = tuple[tuple[int, int], ...]
"""First index and end along each dim of an array."""
Shard = tuple[int, Region, np.ndarray]
"""The place of an array among the leaves, the region, and its elements."""


@dataclass(frozen=True)
class Shares:
    """What each process copies of a state with given shardings."""

    owners: Sequence[dict[Region, int]]
    """For each leaf, the process that copies each region."""
    bytes: Sequence[int]
    """Bytes that each process copies."""


def region_of(index: tuple[slice, ...], shape: Sequence[int]) -> Region:
    """Returns the region that the index of a shard means."""
    return tuple(dim.indices(size)[:2] for dim, size in zip(index, shape, strict=True))


def shares(state: Any, processes: int) -> Shares:
    """Returns the shares of an abstract state, which has shardings. Replicas go to the process with the least."""
    sizes = [0] * processes
    return Shares([_owners(leaf, sizes) for leaf in jax.tree.leaves(state)], sizes)


def _owners(leaf: jax.ShapeDtypeStruct, sizes: list[int]) -> dict[Region, int]:
    assert leaf.sharding
    holders: dict[Region, set[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(region_of(index, leaf.shape), set()).add(device.process_index)
    owners: dict[Region, int] = {}
    for region, processes in holders.items():
        owners[region] = min(processes, key=lambda process: (sizes[process], process))
        sizes[owners[region]] += bytes_of([end - first for first, end in region], leaf.dtype)
    return owners


def copied(state: Any, share: Shares, process: int) -> list[Shard]:
    """Copies the shards of a process to the host, while its devices wait: the next step donates them."""
    found: list[tuple[int, Region, jax.Array]] = []
    for number, (leaf, owners) in enumerate(zip(jax.tree.leaves(state), share.owners, strict=True)):
        shards = {region_of(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards}
        found += [(number, region, data) for region, data in shards.items() if owners[region] == process]
    for _, _, data in found:
        data.copy_to_host_async()
    return [(number, region, np.array(data)) for number, region, data in found]  # a view would prevent the donation
