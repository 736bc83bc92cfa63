"""A sharding as boxes: which device holds which part of an array. Plain arithmetic on shape, spec and mesh.

It follows `jax.sharding.NamedSharding`: a dim split over axes (a, b) is cut into |a|·|b| equal parts, a major; a mesh
axis that no dim uses replicates.
"""

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

from .protocol import ArrayInfo, MeshInfo


class Shard(Struct, frozen=True):
    """A box of an array, half open in each dim, and the devices that hold a copy of it."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    devices: tuple[int, ...]
    """Ids, ascending."""


def parts(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> tuple[int, ...]:
    """Into how many parts each dim is cut."""
    return tuple(math.prod(mesh.axes[axis] for axis in axes) for axes in spec)


def shard_shape(shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> tuple[int, ...]:
    return tuple(size // count for size, count in zip(shape, parts(spec, mesh), strict=True))


def device_parts(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> dict[int, tuple[int, ...]]:
    """Device id to the index of its part along each dim."""
    coordinates = itertools.product(*(range(size) for size in mesh.axes.values()))
    return {
        device: tuple(_part(axes, mesh, dict(zip(mesh.axes, place, strict=True))) for axes in spec)
        for device, place in zip(mesh.device_ids, coordinates, strict=True)
    }


def shards(shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> list[Shard]:
    """The distinct boxes of an array in row-major order, each with its replicas."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, part in device_parts(spec, mesh).items():
        holders.setdefault(part, []).append(device)
    sizes = shard_shape(shape, spec, mesh)
    return [
        Shard(
            tuple(index * size for index, size in zip(part, sizes, strict=True)),
            tuple((index + 1) * size for index, size in zip(part, sizes, strict=True)),
            tuple(sorted(devices)),
        )
        for part, devices in sorted(holders.items())
    ]


def replicas(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> int:
    """How many devices hold each element."""
    return len(mesh.device_ids) // math.prod(parts(spec, mesh))


def bytes_per_device(array: ArrayInfo, mesh: MeshInfo) -> int:
    return array.bytes // math.prod(parts(array.spec, mesh))


def _part(axes: Sequence[str], mesh: MeshInfo, place: dict[str, int]) -> int:
    index = 0
    for axis in axes:
        index = index * mesh.axes[axis] + place[axis]
    return index
