"""A state and a step that are not ours, described as our own programs are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.stages import Compiled

from .leaves import Leaf, leaves, named
from .memory import predict
from .mesh import describe_mesh
from .program_text import read
from .protocol import ArrayInfo, MeshInfo, PresetCompiled
from .sharding import spec_of

NO_MESH = "device"
"""The one axis of what lies on a single device."""
MOST_NAMES = 3


@dataclass(frozen=True)
class Described:
    devices: list[jax.Device]
    """In the order of the mesh."""
    layout: PresetCompiled
    problems: list[str]
    """What cannot be shown."""


@dataclass(frozen=True)
class _Placed:
    """A leaf of the state, or an argument of the step besides it."""

    leaf: Leaf
    short: tuple[str | int, ...]
    kind: str
    sharding: Sharding | None
    """As the step takes it, where the leaf itself does not say."""
    is_argument: bool


def describe(preset: str, state: Sequence[Leaf], step: Compiled | None, seconds: float | None) -> Described:
    """`seconds`: what it took to compile the step, where that is known."""
    placed = _placed(state, _arguments(step) if step else [])
    mesh = _main_mesh(placed)
    devices = list(mesh.devices.flat) if mesh else _main_device(placed)
    info = describe_mesh(mesh) if mesh else MeshInfo({NO_MESH: 1}, [device.id for device in devices])
    names = named([(each.short, each.leaf.path) for each in placed])
    arrays = [_array(name, each, mesh, set(devices)) for name, each in zip(names, placed, strict=True)]
    missing = [name for name, array in zip(names, arrays, strict=True) if array is None]
    held = [array for array, each in zip(arrays, placed, strict=True) if array and each.is_argument]
    collectives = read(step.as_text() or "", info.axes, []).collectives if step else None
    layout = PresetCompiled(
        preset=preset,
        compile_seconds=seconds,
        from_cache=False,
        mesh=info,
        arrays=[array for array in arrays if array],
        collectives=collectives,
        memory=predict(step, held, info, devices[0].platform) if step else None,
    )
    return Described(devices, layout, [_unshown(missing)] if missing else [])


def _arguments(step: Compiled) -> list[Leaf]:
    """Those that it uses."""
    shardings = step.in_tree.flatten_up_to(step.input_shardings)
    avals = leaves(jax.tree.map(_without_data, step.in_avals))
    return [replace(aval, sharding=sharding) for aval, sharding in zip(avals, shardings, strict=True) if sharding]


def _without_data(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _placed(state: Sequence[Leaf], arguments: Sequence[Leaf]) -> list[_Placed]:
    """The leaves of the state, each with the argument that it is, and the arguments that are left: the batch."""
    waiting: dict[tuple[Any, ...], list[Leaf]] = {}
    for argument in arguments:
        waiting.setdefault((argument.shape, argument.dtype), []).append(argument)
    found = [_with_argument(leaf, waiting.get((leaf.shape, leaf.dtype), [])) for leaf in state]
    left = {id(argument) for same in waiting.values() for argument in same}
    return found + [_of_batch(argument) for argument in arguments if id(argument) in left]


def _with_argument(leaf: Leaf, same: list[Leaf]) -> _Placed:
    """Takes it from the arguments of that shape: one that lies alike, or else the first."""
    alike = (at for at, other in enumerate(same) if _lie_alike(leaf, other))
    argument = same.pop(next(alike, 0)) if same else None
    is_told = leaf.is_committed and isinstance(leaf.sharding, NamedSharding)
    sharding = leaf.sharding if is_told or argument is None else argument.sharding
    return _Placed(leaf, leaf.short_path, leaf.kind, sharding, argument is not None)


def _lie_alike(a: Leaf, b: Leaf) -> bool:
    return a.sharding is not None and b.sharding is not None and a.sharding.is_equivalent_to(b.sharding, len(a.shape))


def _of_batch(argument: Leaf) -> _Placed:
    """Its path is that of (positional, by name), and then of its place among them."""
    head, kind = ("batch", "batch") if argument.shape else ("argument", "scalar")
    return _Placed(argument, (head, *(argument.path[2:] or argument.path[1:])), kind, argument.sharding, True)


def _main_mesh(placed: Sequence[_Placed]) -> Mesh | None:
    """The one on which most bytes lie; None where none is told."""
    bytes_on: dict[Mesh, int] = {}
    for each in placed:
        if isinstance(each.sharding, NamedSharding) and isinstance(each.sharding.mesh, Mesh):
            mesh = each.sharding.mesh
            bytes_on[mesh] = bytes_on.get(mesh, 0) + each.leaf.bytes
    return max(bytes_on, key=bytes_on.__getitem__, default=None)


def _main_device(placed: Sequence[_Placed]) -> list[jax.Device]:
    bytes_on: dict[jax.Device, int] = {}
    for each in placed:
        for device in each.sharding.device_set if each.sharding else ():
            bytes_on[device] = bytes_on.get(device, 0) + each.leaf.bytes
    return [max(bytes_on, key=bytes_on.__getitem__, default=jax.local_devices()[0])]


def _array(name: str, each: _Placed, mesh: Mesh | None, devices: set[jax.Device]) -> ArrayInfo | None:
    """None where its layout is none of this mesh."""
    leaf, spec = each.leaf, _spec(each, mesh, devices)
    if spec is None:
        return None
    axes = mesh.axis_names if mesh else ()
    return ArrayInfo(
        name=name,
        kind=each.kind,  # type: ignore[arg-type]
        shape=list(leaf.shape),
        dtype=leaf.dtype.name,
        bytes=leaf.bytes,
        logical_axes=[None if axis in axes else axis for axis in leaf.logical_axes],
        spec=spec,
        compiled_spec=spec,
        reasons=[],
    )


def _spec(each: _Placed, mesh: Mesh | None, devices: set[jax.Device]) -> list[list[str]] | None:
    sharding, rank = each.sharding, len(each.leaf.shape)
    if sharding is None:
        return None
    if isinstance(sharding, NamedSharding) and mesh and _is_same(sharding.mesh, mesh):
        return spec_of(sharding, rank)
    return [[]] * rank if sharding.is_fully_replicated and sharding.device_set == devices else None


def _is_same(a: Any, b: Mesh) -> bool:
    return a == b or (isinstance(a, Mesh) and describe_mesh(a) == describe_mesh(b))


def _unshown(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
    them = f"{len(names)} arrays are" if len(names) > 1 else "an array is"
    return f"{them} not shown, on other devices or another mesh than the rest: {listed}"
