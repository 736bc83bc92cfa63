"""What is likely to be wrong with a preset: findings with stable codes, from the description of its compiled step.

Pure functions of what the engine tells, so the UI, the command line and tests all call `lint`.
"""

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from . import figures
from .layout import bytes_per_device, dim_name, is_same_layout, replicas, shard_shape, used_axes
from .protocol import ArrayInfo, CollectiveInfo, MeshInfo, PresetCompiled, PresetInspected

LARGE_BYTES = 2**20
LARGE_PART = 0.05
"""An array is large enough to be worth splitting over both of these: bytes, and part of a device's parameters."""
FLOPS_PER_BYTE = 10.0
"""Below it communication cannot hide behind compute: chips do 100 to 10,000 FLOP while a byte crosses a link."""

RULES = {
    "S101": ("replicated-parameter", "a large parameter stands whole on an axis that splits the others"),
    "S102": ("replicated-moment", "an optimizer moment is split less than its parameter"),
    "S103": ("does-not-divide", "a dim could not be split as its rule says"),
    "S104": ("idle-axis", "nothing is split over a mesh axis"),
    "S105": ("redundant-compute", "devices repeat each other's work"),
    "S106": ("gathered-parameter", "a parameter is gathered whole where a reduction would do"),
    "S107": ("rematerialization", "the compiler replicates an array to re-split it"),
    "S108": ("other-layout", "the compiler laid an array out otherwise than intended"),
    "S109": ("traffic-over-compute", "an axis carries more bytes than the compute can hide"),
    "S110": ("unnamed-dims", "the preset splits dims that no parameter has"),
}
"""Code to (name, what it finds). Codes never change their meaning."""


class Finding(Struct, frozen=True, kw_only=True):
    code: str
    name: str
    message: str
    """What is wrong, with the numbers."""
    fix: str
    arrays: list[str] = []
    bytes_per_device: int = 0
    """What it costs a device, in memory or in traffic of a step, as the message says; 0 where it is neither."""
    source: str = ""


class _Subject(Struct, frozen=True):
    """One preset's description, as the checks look at it."""

    mesh: MeshInfo
    arguments: Sequence[ArrayInfo]
    inner: Sequence[ArrayInfo]
    """Gradients and activations."""
    collectives: Sequence[CollectiveInfo]
    inspected: PresetInspected | None
    idle_rules: Sequence[str]
    flops_per_device: float | None

    def of_kind(self, kind: str) -> list[ArrayInfo]:
        return [array for array in (*self.arguments, *self.inner) if array.kind == kind]

    def axes_of(self, *kinds: str) -> set[str]:
        return {axis for kind in kinds for array in self.of_kind(kind) for axis in used_axes(array)}

    @property
    def wide_axes(self) -> dict[str, int]:
        return {axis: size for axis, size in self.mesh.axes.items() if size > 1}


def lint(compiled: PresetCompiled, inspected: PresetInspected | None, flops_per_step: float | None) -> list[Finding]:
    """In the order of their codes. Without `inspected`, what it takes to know activations is not looked for; without
    the operations of a step, nor is what has too little to compute."""
    subject = _Subject(
        mesh=compiled.mesh,
        arguments=compiled.arrays,
        inner=inspected.arrays if inspected else (),
        collectives=compiled.collectives or (),
        inspected=inspected,
        flops_per_device=None if flops_per_step is None else flops_per_step / len(compiled.mesh.device_ids),
        idle_rules=compiled.idle_rules,
    )
    checks = (
        _replicated_parameters,
        _replicated_moments,
        _fallen_back,
        _idle_axes,
        _redundant_compute,
        _gathered_parameters,
        _rematerializations,
        _other_layouts,
        _traffic_over_compute,
        _unnamed_dims,
    )
    return [finding for check in checks for finding in check(subject)]


def _finding(
    code: str, message: str, fix: str, arrays: Sequence[ArrayInfo] = (), cost: int = 0, source: str = ""
) -> Finding:
    return Finding(
        code=code,
        name=RULES[code][0],
        message=message,
        fix=fix,
        arrays=[array.name for array in arrays],
        bytes_per_device=cost,
        source=source,
    )


def _replicated_parameters(subject: _Subject) -> Iterator[Finding]:
    parameters = subject.of_kind("parameter")
    held = sum(bytes_per_device(array, subject.mesh) for array in parameters)
    for axis, size in subject.wide_axes.items():
        if axis not in subject.axes_of("parameter"):
            continue
        for array in parameters:
            each = bytes_per_device(array, subject.mesh)
            saved = each - each // size
            if axis in used_axes(array) or saved < max(LARGE_BYTES, LARGE_PART * held):
                continue
            lengths = shard_shape(array.shape, array.compiled_spec, subject.mesh)
            longest = max((length, dim) for dim, length in enumerate(lengths))[1]
            if lengths[longest] % size == 0:
                name = dim_name(array, longest)
                yield _finding(
                    "S101",
                    f"{array.name} is the same on all {size} devices along {axis}: {figures.size(saved)} of "
                    f"{figures.size(each)} on each device could be spared",
                    f'split {name} over it: a rule {name} = "{axis}" or an override',
                    [array],
                    saved,
                )


def _replicated_moments(subject: _Subject) -> Iterator[Finding]:
    parameters = {array.name: array for array in subject.of_kind("parameter")}
    wasteful: list[ArrayInfo] = []
    saved = 0
    for moment in subject.of_kind("moment"):
        parameter = next((array for name, array in parameters.items() if moment.name.endswith(f".{name}")), None)
        if parameter and replicas(moment.compiled_spec, subject.mesh) > replicas(parameter.compiled_spec, subject.mesh):
            wasteful.append(moment)
            saved += bytes_per_device(moment, subject.mesh) - bytes_per_device(parameter, subject.mesh)
    if wasteful:
        yield _finding(
            "S102",
            f"{_names(wasteful)} split less than their parameters: {figures.size(saved)} a device could be spared",
            "lay the optimizer state out as the parameters: drop the override, or give `jit` out_shardings for it",
            wasteful,
            saved,
        )


def _fallen_back(subject: _Subject) -> Iterator[Finding]:
    for array in (*subject.arguments, *subject.inner):
        held = bytes_per_device(array, subject.mesh)
        for dim, axes in enumerate(array.fell_back):
            count = math.prod(subject.mesh.axes[axis] for axis in axes)
            if array.shape[dim] % count:
                name = dim_name(array, dim)
                yield _finding(
                    "S103",
                    f"{array.name}: {name} {array.shape[dim]} does not divide by {count} ({' × '.join(axes)}), "
                    f"so it is whole: {figures.size(held)} a device",
                    f"make it a multiple of {count}, or take the rule for {name} away",
                    [array],
                    held,
                )


def _idle_axes(subject: _Subject) -> Iterator[Finding]:
    if not subject.of_kind("batch"):
        return  # of a run that is only watched, and the batch is what is split first
    used = subject.axes_of("parameter", "moment", "batch", "gradient", "activation")
    for axis, size in subject.wide_axes.items():
        if axis not in used:
            yield _finding(
                "S104",
                f"nothing is split over {axis}: {size} devices along it hold and do the same",
                f'name it in a rule, batch = "{axis}" say, or give its {size} devices to another axis',
            )


def _redundant_compute(subject: _Subject) -> Iterator[Finding]:
    if not subject.of_kind("activation"):
        return
    working = subject.axes_of("batch", "activation")
    idle = {axis: size for axis, size in subject.wide_axes.items() if axis not in working}
    if not idle:
        return
    factor = math.prod(idle.values())
    crowded = _crowded(subject)
    why = f"; {', '.join(sorted(crowded))} want axes that the batch has taken" if crowded else ""
    yield _finding(
        "S105",
        f"no activation is split over {' × '.join(idle)}: every product is computed {factor} times{why}",
        f'split the batch over it, batch = "{next(iter(idle))}", or a dim of the activations: heads, mlp, vocab',
    )


def _crowded(subject: _Subject) -> set[str]:
    """Logical axes of activations that could not have their mesh axis, since another dim of the array has it."""
    return {
        dim_name(array, dim)
        for array in subject.of_kind("activation")
        for dim, axes in enumerate(array.fell_back)
        if set(axes) & used_axes(array)
    }


def _gathered_parameters(subject: _Subject) -> Iterator[Finding]:
    """FSDP gathers along an axis that also splits the batch; along another one the product could be reduced instead."""
    batch_axes = subject.axes_of("batch")
    gathers = [info for info in subject.collectives if info.kind == "all-gather" and not batch_axes & set(info.axes)]
    for array in subject.of_kind("parameter"):
        mine = [info for info in gathers if set(info.axes) <= used_axes(array) and _is_whole(info, array, subject.mesh)]
        if mine:
            moved = sum(info.bytes_per_device or info.bytes_each for info in mine)
            axes = " × ".join(mine[0].axes)
            yield _finding(
                "S106",
                f"{array.name} is gathered whole over {axes}, {figures.size(moved)} a device and step, "
                f"though the batch is not split over {axes}",
                "split a dim that the activations share, so that each device multiplies its part: heads, mlp or vocab",
                [array],
                moved,
                mine[0].source,
            )


def _is_whole(info: CollectiveInfo, array: ArrayInfo, mesh: MeshInfo) -> bool:
    """The gather yields one layer of `array`, whole along the axes of the gather."""
    spec = [[axis for axis in axes if axis not in info.axes] for axes in array.compiled_spec]
    stacked = array.logical_axes[:1] == ["layers"]
    wanted = sorted(size for size in shard_shape(array.shape, spec, mesh)[stacked:] if size > 1)
    return len(wanted) > 1 and any(sorted(size for size in shape if size > 1) == wanted for shape in info.shapes)


def _rematerializations(subject: _Subject) -> Iterator[Finding]:
    for found in subject.inspected.rematerializations if subject.inspected else ():
        known = [array for array in (*subject.arguments, *subject.inner) if _may_be(array, found.shape, subject.mesh)]
        where = f" at {found.source}" if found.source else f" in {found.op_name}" if found.op_name else ""
        which = f"; of that shape: {_names(known)}" if known else ""
        yield _finding(
            "S107",
            f"{found.operation}{where} is replicated to go from {found.from_sharding} to {found.to_sharding}{which}",
            "ask for one layout on both sides of that operation with a sharding constraint, or change the rule of one",
            known,
            source=found.source,
        )


def _may_be(array: ArrayInfo, shape: Sequence[int], mesh: MeshInfo) -> bool:
    return list(shape) in (list(array.shape), list(shard_shape(array.shape, array.compiled_spec, mesh)))


def _other_layouts(subject: _Subject) -> Iterator[Finding]:
    for array in (*subject.arguments, *subject.inner):
        if is_same_layout(array.spec, array.compiled_spec, subject.mesh):
            continue
        intended = math.prod(shard_shape(array.shape, array.spec, subject.mesh))
        compiled = math.prod(shard_shape(array.shape, array.compiled_spec, subject.mesh))
        if array.kind == "activation" and compiled <= intended:
            continue  # left to the compiler, which split it further
        yield _finding(
            "S108",
            f"{array.name}: intended {figures.spec(array.spec)}, compiled {figures.spec(array.compiled_spec)}",
            "ask for it with a sharding constraint, or write what the compiler does into the preset",
            [array],
            bytes_per_device(array, subject.mesh),
        )


def _traffic_over_compute(subject: _Subject) -> Iterator[Finding]:
    moved_by_axes: dict[str, int] = {}
    for info in subject.collectives:
        axes = " × ".join(info.axes)
        moved_by_axes[axes] = moved_by_axes.get(axes, 0) + (info.bytes_per_device or info.bytes_each)
    flops = subject.flops_per_device
    for axes, moved in moved_by_axes.items():
        if flops is not None and flops < FLOPS_PER_BYTE * moved:
            yield _finding(
                "S109",
                f"{axes} carries {figures.size(moved)} a device and step for {figures.rate(flops)}FLOP of compute: "
                f"{flops / moved:.1f} FLOP a byte",
                "give each device more to do: a larger batch, longer sequences, or fewer devices on that axis",
                cost=moved,
            )


def _unnamed_dims(subject: _Subject) -> Iterator[Finding]:
    if subject.idle_rules and not subject.axes_of("parameter") & set(subject.wide_axes):
        held = sum(bytes_per_device(array, subject.mesh) for array in subject.of_kind("parameter"))
        yield _finding(
            "S110",
            f"no parameter is split, {figures.size(held)} of them stand on each device: the preset has rules for "
            f"{', '.join(subject.idle_rules)}, and the model has no such dim",
            "name the dims of its parameters, nnx.with_partitioning(init, ('embed', 'mlp')) say, or split arrays by "
            "their names in [overrides]",
            cost=held,
        )


def _names(arrays: Sequence[ArrayInfo]) -> str:
    first = ", ".join(array.name for array in arrays[:2])
    return f"{first} and {len(arrays) - 2} more" if len(arrays) > 2 else first
