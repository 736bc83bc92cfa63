"""A sharding as boxes: which device holds which part of an array. Plain arithmetic on shape, spec and mesh.

It follows `jax.sharding.NamedSharding`: a dim split over axes (a, b) is cut into |a|·|b| equal parts, a major; a mesh
axis that no dim uses replicates.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from ..wire.descriptions import ArrayInfo, MeshInfo


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
    """Of the largest shard: where the compiler cuts a dim that does not divide, the last ones are smaller."""
    return tuple(-(-size // count) for size, count in zip(shape, parts(spec, mesh), strict=True))


def coordinates(mesh: MeshInfo) -> Mapping[int, Mapping[str, int]]:
    """Device id to its place along each axis."""
    return _coordinates(tuple(mesh.axes.items()), tuple(mesh.device_ids))


@lru_cache(maxsize=64)
def _coordinates(axes: tuple[tuple[str, int], ...], devices: tuple[int, ...]) -> Mapping[int, Mapping[str, int]]:
    names = [axis for axis, _ in axes]
    places = itertools.product(*(range(size) for _, size in axes))
    return {device: dict(zip(names, place, strict=True)) for device, place in zip(devices, places, strict=True)}


def device_parts(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> Mapping[int, tuple[int, ...]]:
    """Device id to the index of its part along each dim."""
    return _device_parts(tuple(map(tuple, spec)), tuple(mesh.axes.items()), tuple(mesh.device_ids))


@lru_cache(maxsize=256)  # arrays by the dozen share a spec, and meshes have hundreds of devices
def _device_parts(
    spec: tuple[tuple[str, ...], ...], axes: tuple[tuple[str, int], ...], devices: tuple[int, ...]
) -> Mapping[int, tuple[int, ...]]:
    sizes = dict(axes)
    return {
        device: tuple(_part(dim, sizes, place) for dim in spec) for device, place in _coordinates(axes, devices).items()
    }


def shards(shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> list[Shard]:
    """The distinct boxes of an array in row-major order, each with its replicas."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, part in device_parts(spec, mesh).items():
        holders.setdefault(part, []).append(device)
    sizes = shard_shape(shape, spec, mesh)
    return [_shard(part, shape, sizes, devices) for part, devices in sorted(holders.items())]


def shard_of(device: int, shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> Shard:
    """The box that a device holds, with that device alone."""
    return _shard(device_parts(spec, mesh)[device], shape, shard_shape(shape, spec, mesh), [device])


def _shard(part: Sequence[int], shape: Sequence[int], sizes: Sequence[int], devices: Sequence[int]) -> Shard:
    return Shard(
        tuple(min(index * size, whole) for index, size, whole in zip(part, sizes, shape, strict=True)),
        tuple(min((index + 1) * size, whole) for index, size, whole in zip(part, sizes, shape, strict=True)),
        tuple(sorted(devices)),
    )


def replicas(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> int:
    """How many devices hold each element."""
    return len(mesh.device_ids) // math.prod(parts(spec, mesh))


def bytes_per_device(array: ArrayInfo, mesh: MeshInfo) -> int:
    """As compiled, on the fullest device."""
    return (
        array.bytes * math.prod(shard_shape(array.shape, array.compiled_spec, mesh)) // max(1, math.prod(array.shape))
    )


def wasted_bytes(array: ArrayInfo, mesh: MeshInfo) -> int:
    """What all devices hold beyond one copy."""
    return bytes_per_device(array, mesh) * len(mesh.device_ids) - array.bytes


def notation(array: ArrayInfo) -> str:
    """`[layers, embed, mlp_model]`: each dim's name with its mesh axes as subscript, as compiled."""
    return f"[{', '.join(dim_notations(array))}]" if array.shape else ""


def dim_notations(array: ArrayInfo) -> list[str]:
    dims = zip(array.logical_axes, array.shape, array.compiled_spec, strict=True)
    return ["_".join((logical or str(size), *axes)) for logical, size, axes in dims]


def dim_name(array: ArrayInfo, dim: int) -> str:
    return array.logical_axes[dim] or f"dim {dim}"


def used_axes(array: ArrayInfo) -> set[str]:
    """The mesh axes that split it, as compiled."""
    return {axis for axes in array.compiled_spec for axis in axes}


def is_same_layout(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]], mesh: MeshInfo) -> bool:
    """Axes of size 1 split nothing."""
    return _without_ones(a, mesh) == _without_ones(b, mesh)


def shards_differ(a: ArrayInfo, b: ArrayInfo, a_mesh: MeshInfo, b_mesh: MeshInfo) -> bool:
    """The devices hold other parts of it, whatever the axes are called."""
    if parts(a.compiled_spec, a_mesh) != parts(b.compiled_spec, b_mesh):
        return True
    return device_parts(a.compiled_spec, a_mesh) != device_parts(b.compiled_spec, b_mesh)


def _without_ones(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> list[list[str]]:
    return [[axis for axis in axes if mesh.axes[axis] > 1] for axes in spec]


def _part(axes: Sequence[str], sizes: Mapping[str, int], place: Mapping[str, int]) -> int:
    index = 0
    for axis in axes:
        index = index * sizes[axis] + place[axis]
    return index
