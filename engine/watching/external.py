"""A state and a step that are not ours, described as our own programs are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, Sharding

from ..analysis.program_text import read
from ..parallel.mesh import describe_mesh
from ..parallel.rules import spec_of
from ..program.leaves import Leaf, named
from ..program.memory import predict
from ..wire.descriptions import ArrayInfo, CollectiveInfo, MeshInfo
from ..wire.events import PresetCompiled
from .external_step import Step, is_told, lie_alike

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
    """As the step takes it, where the leaf itself does not say; None where that cannot be told."""
    argument: int | None
    """Its number."""
    is_unclear: bool = False
    """It may lie one way or another."""


def describe(preset: str, state: Sequence[Leaf], step: Step | None, seconds: float | None) -> Described:
    """`seconds`: what it took to compile the step, where that is known."""
    placed = _placed(state, step)
    mesh = _main_mesh(placed)
    devices = list(mesh.devices.flat) if mesh else _main_device(placed)
    info = describe_mesh(mesh) if mesh else MeshInfo({NO_MESH: 1}, [device.id for device in devices])
    names = named([(each.short, each.leaf.path) for each in placed])
    arrays = [_array(name, each, mesh, set(devices)) for name, each in zip(names, placed, strict=True)]
    told = list(zip(names, placed, arrays, strict=True))
    held = [array for _, each, array in told if array and step and step.uses(each.argument)]
    unclear = [name for name, each, _ in told if each.is_unclear]
    elsewhere = [name for name, each, array in told if not array and not each.is_unclear]
    layout = PresetCompiled(
        preset=preset,
        compile_seconds=seconds,
        from_cache=False,
        mesh=info,
        arrays=[array for array in arrays if array],
        collectives=_collectives(step, info, {each.argument: name for name, each, _ in told}) if step else None,
        memory=predict(step.compiled, held, info, devices[0].platform) if step and not unclear else None,
    )
    return Described(devices, layout, [*_unshown(elsewhere), *_unknown(unclear)])


def _collectives(step: Step, mesh: MeshInfo, names: Mapping[int | None, str]) -> list[CollectiveInfo] | None:
    """The program has no arguments but those that the step uses."""
    arguments = [names.get(at, "") for at in range(len(step.arguments)) if step.uses(at)]
    return read(step.compiled.as_text() or "", mesh.axes, arguments).collectives


def _placed(state: Sequence[Leaf], step: Step | None) -> list[_Placed]:
    """The leaves of the state, each with the argument that it is, and the arguments that are left: the batch."""
    if step is None:
        return [_Placed(leaf, leaf.short_path, leaf.kind, leaf.sharding, None) for leaf in state]
    matching = step.taken(state)
    anew = step.laid_out_anew(state)
    taken = dict(matching.others)
    found: list[_Placed] = []
    for at, leaf in enumerate(state):
        options = [taken[at]] if at in taken else matching.unclear.get(at, [])
        lies = _lies(leaf, [step.arguments[option] for option in options])
        is_unclear = lies is None or (at in anew and anew[at] is None)
        free = (option for option in options if option not in taken.values())
        if at not in taken and not is_unclear and (first := next(free, None)) is not None:
            taken[at] = first
        found.append(_Placed(leaf, leaf.short_path, leaf.kind, None if is_unclear else lies, taken.get(at), is_unclear))
    contested = {option for at, each in enumerate(found) if each.is_unclear for option in matching.unclear.get(at, [])}
    left = sorted({*range(len(step.arguments))} - {*taken.values()} - contested)
    return found + [_of_batch(step.arguments[at], at) for at in left if step.uses(at)]


def _lies(leaf: Leaf, options: Sequence[Leaf]) -> Sharding | None:
    """As its argument; None where it may be one of several that lie otherwise."""
    first, *others = [option for option in options if option.sharding] or [leaf]
    if is_told(leaf) or not options:
        return leaf.sharding
    return first.sharding if all(lie_alike(first, other) for other in others) else None


def _of_batch(argument: Leaf, at: int) -> _Placed:
    """Its path is that of (positional, by name), and then of its place among them."""
    head, kind = ("batch", "batch") if argument.shape else ("argument", "scalar")
    return _Placed(argument, (head, *(argument.path[2:] or argument.path[1:])), kind, argument.sharding, at)


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


def _unshown(names: Sequence[str]) -> list[str]:
    them = "an array is" if len(names) == 1 else f"{len(names)} arrays are"
    return [f"{them} not shown, on other devices or another mesh than the rest: {_listed(names)}"] if names else []


def _unknown(names: Sequence[str]) -> list[str]:
    them = "an array" if len(names) == 1 else f"{len(names)} arrays"
    return [
        f"the layout of {them} is unknown, and so is the memory of a step: several arguments or results of the step "
        f"have the shape: give watch args=, the arrays that it is called with: {_listed(names)}"
    ][: len(names)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
