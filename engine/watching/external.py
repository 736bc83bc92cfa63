"""Describes the state and step of an external training loop in the same terms as this engine's own programs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, Sharding

from ..base import formatting
from ..explain.programs import KeptStep, kept_step
from ..hlo.program_text import read_collectives
from ..parallel.rules import spec_of
from ..program.memory import predict
from ..program.pytree_arrays import Leaf, bytes_of, unique_names
from ..wire.descriptions import ArrayInfo, MeshInfo
from ..wire.events import PresetCompiled
from .external_step import CompiledStep, is_placed

SINGLE_DEVICE_AXIS = "device"
"""The name of the mesh's only axis if everything is on a single device."""
MAX_NAMES = 3


@dataclass(frozen=True)
class Described:
    devices: list[jax.Device]
    layout: PresetCompiled
    parameters: int
    """Elements of all parameters; of one at several places, once."""
    problems: list[str]
    """One sentence for each group of arrays that cannot be shown."""
    step: KeptStep | None
    """Its step, for explanations; None if only a compiled step is known."""


@dataclass(frozen=True)
class _Placed:
    leaf: Leaf
    short_path: tuple[str | int, ...]
    kind: str
    sharding: Sharding | None
    """Its own, or the sharding of the step's argument if it is not placed itself; None if unknown."""
    argument: int | None
    """Its index among the step's arguments; None if it is no argument."""


def describe(preset: str, state: Sequence[Leaf], step: CompiledStep | None, seconds: float | None) -> Described:
    """Returns the description of a state, and of its step if it is given. `seconds`: the step's compile time, or None
    if it is unknown."""
    placed = _placed(state, step)
    mesh = _main_mesh(placed[: len(state)]) or _main_mesh(placed)
    devices = list(mesh.devices.flat) if mesh else _main_device(placed)
    axes = {axis: mesh.shape[axis] for axis in _splitting(mesh)} if mesh else {SINGLE_DEVICE_AXIS: 1}
    info = MeshInfo(axes, [device.id for device in devices])
    names = unique_names([(each.short_path, each.leaf.path) for each in placed])
    arrays = [_array(name, each, mesh, set(devices)) for name, each in zip(names, placed, strict=True)]
    rows = list(zip(names, placed, arrays, strict=True))
    first = {each.argument: (name, each) for name, each, _ in reversed(rows)}  # several places may share an argument
    by_argument = {at: name for at, (name, _) in first.items()}
    sizes = [
        (each.kind, _bytes_taken(step.arguments[at]))
        for at, (_, each) in first.items()
        if step and at is not None and step.uses(at)
    ]
    # the compiled program has only the arguments that the step uses
    arguments = [by_argument.get(at, "") for at in range(len(step.arguments)) if step.uses(at)] if step else []
    elsewhere = [name for name, _, array in rows if not array]
    layout = PresetCompiled(
        preset=preset,
        compile_seconds=seconds,
        from_cache=False,
        mesh=info,
        arrays=[array for array in arrays if array],
        collectives=read_collectives(step.compiled.as_text() or "", info.axes, arguments) if step else None,
        memory=predict(step.compiled, sizes, devices[0].platform) if step and sizes else None,
    )
    problems: list[str] = []
    if elsewhere:
        subject = "1 array is" if len(elsewhere) == 1 else f"{len(elsewhere)} arrays are"
        listed = formatting.listed(elsewhere, MAX_NAMES)
        problems.append(f"{subject} not shown because their devices or mesh differ from the rest: {listed}")
    if step and not sizes:
        problems.append(
            "the batch and the memory of a step are not shown, as none of its arguments is known to be an array of the "
            "state: pass to watch as state= what is in args="
        )
    shapes = {each.leaf.identity: each.leaf.shape for _, each, array in rows if array and each.kind == "parameter"}
    kept = kept_step(step.lowered, arguments) if step and step.lowered else None
    return Described(devices, layout, sum(map(math.prod, shapes.values())), problems, kept)


def _placed(state: Sequence[Leaf], step: CompiledStep | None) -> list[_Placed]:
    """Returns the leaves of the state, each with its argument, and then the remaining arguments: the batch. None remain
    if no leaf is an argument, as they may be the state."""
    if step is None:
        return [_Placed(leaf, leaf.short_path, leaf.kind, leaf.sharding, None) for leaf in state]
    taken = step.match(state)
    found: list[_Placed] = []
    for at, leaf in enumerate(state):
        argument = step.arguments[taken[at]] if at in taken and not is_placed(leaf) else leaf
        sharding = argument.sharding or leaf.sharding
        found.append(_Placed(leaf, leaf.short_path, leaf.kind, sharding, taken.get(at)))
    remaining = sorted({*range(len(step.arguments))} - {*taken.values()}) if taken else ()
    kinds = {leaf.identity: leaf.kind for leaf in state}
    return found + [_other_argument(step.arguments[at], at, kinds) for at in remaining if step.uses(at)]


def _other_argument(argument: Leaf, at: int, kinds: Mapping[int, str]) -> _Placed:
    """Names it by its path within the argument, or by the argument's index if that is a single array. `kinds`: of the
    state's arrays, one of which it may be."""
    kind = kinds.get(argument.identity, "batch" if argument.shape else "scalar")
    head = "batch" if kind == "batch" else "argument"
    return _Placed(argument, (head, *(argument.path[2:] or argument.path[1:])), kind, argument.sharding, at)


def _bytes_taken(argument: Leaf) -> int:
    """Returns the bytes of an argument on one device."""
    assert argument.sharding
    return bytes_of(argument.sharding.shard_shape(argument.shape), argument.dtype)


def _main_mesh(placed: Sequence[_Placed]) -> Mesh | None:
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
    """Returns None if the array is not laid out on this mesh."""
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
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and mesh:
        axes = _renamed(sharding.mesh, mesh)
        spec = spec_of(sharding, rank)
        if all(axis in axes for dim in spec for axis in dim):
            return [[name for axis in dim for name in axes[axis]] for dim in spec]
    return [[]] * rank if sharding.is_fully_replicated and sharding.device_set == devices else None


def _renamed(other: Mesh, mesh: Mesh) -> dict[str, list[str]]:
    """Returns the axes of `mesh` that each axis of `other` is, as far as both divide the same devices alike; nothing if
    their devices or the order of these differ."""
    if list(other.devices.flat) != list(mesh.devices.flat):
        return {}
    rest = _splitting(mesh)
    found: dict[str, list[str]] = {}
    for axis, size in other.shape.items():
        taken: list[str] = []
        while rest and math.prod(mesh.shape[each] for each in taken) < size:
            taken.append(rest.pop(0))
        if math.prod(mesh.shape[each] for each in taken) != size:
            break
        found[axis] = taken
    return found if other.shape != mesh.shape else {axis: [axis] * (axis in _splitting(mesh)) for axis in other.shape}


def _splitting(mesh: Mesh) -> list[str]:
    """Returns the axes that divide the devices: a mesh of MaxText has ten more, of size 1."""
    return [axis for axis in mesh.axis_names if mesh.shape[axis] > 1] or list(mesh.axis_names)
