"""Which device holds which part of an array: arithmetic on shape, spec and mesh.

It follows `jax.sharding.NamedSharding`: a dim split over axes (a, b) is cut into |a|·|b| equal parts, a major; an array
is replicated over mesh axes that no dim uses.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from ..wire.descriptions import ArrayInfo, MeshInfo


class Shard(Struct, frozen=True):
    """A box of an array and the devices that hold a copy of it."""

    start: tuple[int, ...]
    """The first index in each dim."""
    stop: tuple[int, ...]
    """The index after the last one in each dim."""
    devices: tuple[int, ...]
    """Device ids, ascending."""


def parts(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> tuple[int, ...]:
    return tuple(math.prod(mesh.axes[axis] for axis in axes) for axes in spec)


def shard_shape(shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> tuple[int, ...]:
    """Returns the shape of the largest shard. Where the compiler splits a dim unevenly, the last are smaller."""
    return tuple(-(-size // count) for size, count in zip(shape, parts(spec, mesh), strict=True))


def coordinates(mesh: MeshInfo) -> Mapping[int, Mapping[str, int]]:
    return _coordinates(tuple(mesh.axes.items()), tuple(mesh.device_ids))


@lru_cache(maxsize=64)
def _coordinates(axes: tuple[tuple[str, int], ...], devices: tuple[int, ...]) -> Mapping[int, Mapping[str, int]]:
    names = [axis for axis, _ in axes]
    places = itertools.product(*(range(size) for _, size in axes))
    return {device: dict(zip(names, place, strict=True)) for device, place in zip(devices, places, strict=True)}


def device_parts(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> Mapping[int, tuple[int, ...]]:
    return _device_parts(tuple(map(tuple, spec)), tuple(mesh.axes.items()), tuple(mesh.device_ids))


@lru_cache(maxsize=256)  # dozens of arrays share a spec, and a mesh can have hundreds of devices
def _device_parts(
    spec: tuple[tuple[str, ...], ...], axes: tuple[tuple[str, int], ...], devices: tuple[int, ...]
) -> Mapping[int, tuple[int, ...]]:
    sizes = dict(axes)
    return {
        device: tuple(_part(dim, sizes, place) for dim in spec) for device, place in _coordinates(axes, devices).items()
    }


def shards(shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> list[Shard]:
    """Returns the distinct shards of an array in row-major order, each with the devices that hold it."""
    sizes = shard_shape(shape, spec, mesh)
    return [_shard(part, shape, sizes, devices) for part, devices in sorted(holders(spec, mesh).items())]


def holders(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> dict[tuple[int, ...], list[int]]:
    """Returns the devices that hold each part."""
    found: dict[tuple[int, ...], list[int]] = {}
    for device, part in device_parts(spec, mesh).items():
        found.setdefault(part, []).append(device)
    return found


def shard_of(device: int, shape: Sequence[int], spec: Sequence[Sequence[str]], mesh: MeshInfo) -> Shard:
    return _shard(device_parts(spec, mesh)[device], shape, shard_shape(shape, spec, mesh), [device])


def _shard(part: Sequence[int], shape: Sequence[int], sizes: Sequence[int], devices: Sequence[int]) -> Shard:
    return Shard(
        tuple(min(index * size, full) for index, size, full in zip(part, sizes, shape, strict=True)),
        tuple(min((index + 1) * size, full) for index, size, full in zip(part, sizes, shape, strict=True)),
        tuple(sorted(devices)),
    )


def replicas(spec: Sequence[Sequence[str]], mesh: MeshInfo) -> int:
    return len(mesh.device_ids) // math.prod(parts(spec, mesh))


def bytes_per_device(array: ArrayInfo, mesh: MeshInfo) -> int:
    """Returns the bytes of the largest shard of an array as compiled: what the fullest device holds."""
    return (
        array.bytes * math.prod(shard_shape(array.shape, array.compiled_spec, mesh)) // max(1, math.prod(array.shape))
    )


def wasted_bytes(array: ArrayInfo, mesh: MeshInfo) -> int:
    """Returns the bytes that all devices together hold in excess of one copy."""
    return bytes_per_device(array, mesh) * len(mesh.device_ids) - array.bytes


def notation(array: ArrayInfo) -> str:
    """Returns `[layers, embed, mlp@model]`: dims with mesh axes, as compiled and as `jax.typeof` writes them. Empty for
    a scalar."""
    return f"[{', '.join(dim_notations(array))}]" if array.shape else ""


def dim_notations(array: ArrayInfo) -> list[str]:
    """Returns each dim of `notation`: its logical axis, or its size without one, then its mesh axes."""
    dims = zip(array.logical_axes, array.shape, array.compiled_spec, strict=True)
    return [(logical or str(size)) + _at(axes) for logical, size, axes in dims]


def _at(axes: Sequence[str]) -> str:
    """Returns `@fsdp`, or `@(fsdp,model)`; empty for none."""
    return f"@({','.join(axes)})" if len(axes) > 1 else "".join(f"@{axis}" for axis in axes)


def dim_name(array: ArrayInfo, dim: int) -> str:
    """Returns the logical axis of a dim, `dim 0` and so on without one."""
    return array.logical_axes[dim] or f"dim {dim}"


def used_axes(array: ArrayInfo) -> set[str]:
    return {axis for axes in array.compiled_spec for axis in axes}


def is_same_layout(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]], mesh: MeshInfo) -> bool:
    """Returns whether two specs lay arrays out the same way. Axes of size 1 do not matter."""
    return _without_ones(a, mesh) == _without_ones(b, mesh)


def shards_differ(a: ArrayInfo, b: ArrayInfo, a_mesh: MeshInfo, b_mesh: MeshInfo) -> bool:
    """Returns whether devices hold different parts of an array in `a` and `b`, whatever the names of the axes."""
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
