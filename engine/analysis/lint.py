"""What is likely to be wrong with a preset: findings with stable codes, from the description of its compiled step.

Pure functions of what the engine tells, so the UI, the command line and tests all call `lint`.
"""

import math
from collections.abc import Iterator, Sequence

from ..base import figures
from ..wire.descriptions import ArrayInfo, MeshInfo
from ..wire.events import PresetCompiled, PresetInspected
from .finding import RULES, Finding, Subject, finding
from .gathers import gathered_parameters
from .layout import bytes_per_device, dim_name, is_same_layout, replicas, shard_shape, used_axes
from .repetition import repeated_products

__all__ = ["RULES", "Finding", "lint"]

LARGE_BYTES = 2**20
LARGE_PART = 0.05
"""An array is large enough to be worth splitting over both of these: bytes, and part of a device's parameters."""
FLOPS_PER_BYTE = 10.0
"""Below it communication cannot hide behind compute: chips do 100 to 10,000 FLOP while a byte crosses a link."""


def lint(compiled: PresetCompiled, inspected: PresetInspected | None, flops_per_step: float | None) -> list[Finding]:
    """In the order of their codes. Without `inspected`, what it takes to know activations is not looked for; without
    the operations of a step, nor is what has too little to compute."""
    subject = Subject(
        mesh=compiled.mesh,
        arguments=compiled.arrays,
        inner=inspected.arrays if inspected else (),
        collectives=compiled.collectives or (),
        products=compiled.products,
        inspected=inspected,
        flops_per_device=None if flops_per_step is None else flops_per_step / len(compiled.mesh.device_ids),
        idle_rules=compiled.idle_rules,
    )
    checks = (
        _replicated_parameters,
        _replicated_moments,
        _fallen_back,
        _idle_axes,
        repeated_products,
        gathered_parameters,
        _rematerializations,
        _other_layouts,
        _traffic_over_compute,
        _unnamed_dims,
    )
    return [found for check in checks for found in check(subject)]


def _replicated_parameters(subject: Subject) -> Iterator[Finding]:
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
                yield finding(
                    "S101",
                    f"{array.name} is the same on all {size} devices along {axis}: {figures.size(saved)} of "
                    f"{figures.size(each)} on each device could be spared",
                    f'split {name} over it: a rule {name} = "{axis}" or an override',
                    [array],
                    saved,
                )


def _replicated_moments(subject: Subject) -> Iterator[Finding]:
    parameters = {array.name: array for array in subject.of_kind("parameter")}
    wasteful: list[ArrayInfo] = []
    saved = 0
    for moment in subject.of_kind("moment"):
        parameter = next((array for name, array in parameters.items() if moment.name.endswith(f".{name}")), None)
        if parameter and replicas(moment.compiled_spec, subject.mesh) > replicas(parameter.compiled_spec, subject.mesh):
            wasteful.append(moment)
            saved += bytes_per_device(moment, subject.mesh) - bytes_per_device(parameter, subject.mesh)
    if wasteful:
        yield finding(
            "S102",
            f"{_names(wasteful)} split less than their parameters: {figures.size(saved)} a device could be spared",
            "lay the optimizer state out as the parameters: drop the override, or give `jit` out_shardings for it",
            wasteful,
            saved,
        )


def _fallen_back(subject: Subject) -> Iterator[Finding]:
    for array in (*subject.arguments, *subject.inner):
        held = bytes_per_device(array, subject.mesh)
        for dim, axes in enumerate(array.fell_back):
            count = math.prod(subject.mesh.axes[axis] for axis in axes)
            if array.shape[dim] % count:
                name = dim_name(array, dim)
                yield finding(
                    "S103",
                    f"{array.name}: {name} {array.shape[dim]} does not divide by {count} ({' × '.join(axes)}), "
                    f"so it is whole: {figures.size(held)} a device",
                    f"make it a multiple of {count}, or take the rule for {name} away",
                    [array],
                    held,
                )


def _idle_axes(subject: Subject) -> Iterator[Finding]:
    if not subject.of_kind("batch"):
        return  # of a run that is only watched, and the batch is what is split first
    used = subject.axes_of("parameter", "moment", "batch", "gradient", "activation")
    for axis, size in subject.wide_axes.items():
        if axis not in used:
            yield finding(
                "S104",
                f"nothing is split over {axis}: {size} devices along it hold and do the same",
                f'name it in a rule, batch = "{axis}" say, or give its {size} devices to another axis',
            )


def _rematerializations(subject: Subject) -> Iterator[Finding]:
    for found in subject.inspected.rematerializations if subject.inspected else ():
        known = [array for array in (*subject.arguments, *subject.inner) if _may_be(array, found.shape, subject.mesh)]
        where = f" at {found.source}" if found.source else f" in {found.op_name}" if found.op_name else ""
        which = f"; of that shape: {_names(known)}" if known else ""
        yield finding(
            "S107",
            f"{found.operation}{where} is replicated to go from {found.from_sharding} to {found.to_sharding}{which}",
            "ask for one layout on both sides of that operation with a sharding constraint, or change the rule of one",
            known,
            source=found.source,
        )


def _may_be(array: ArrayInfo, shape: Sequence[int], mesh: MeshInfo) -> bool:
    return list(shape) in (list(array.shape), list(shard_shape(array.shape, array.compiled_spec, mesh)))


def _other_layouts(subject: Subject) -> Iterator[Finding]:
    for array in (*subject.arguments, *subject.inner):
        if is_same_layout(array.spec, array.compiled_spec, subject.mesh):
            continue
        intended = math.prod(shard_shape(array.shape, array.spec, subject.mesh))
        compiled = math.prod(shard_shape(array.shape, array.compiled_spec, subject.mesh))
        if array.kind == "activation" and compiled <= intended:
            continue  # left to the compiler, which split it further
        yield finding(
            "S108",
            f"{array.name}: intended {figures.spec(array.spec)}, compiled {figures.spec(array.compiled_spec)}",
            "ask for it with a sharding constraint, or write what the compiler does into the preset",
            [array],
            bytes_per_device(array, subject.mesh),
        )


def _traffic_over_compute(subject: Subject) -> Iterator[Finding]:
    moved_by_axes: dict[str, int] = {}
    for info in subject.collectives:
        axes = " × ".join(info.axes)
        moved_by_axes[axes] = moved_by_axes.get(axes, 0) + (info.bytes_per_device or info.bytes_each)
    flops = subject.flops_per_device
    for axes, moved in moved_by_axes.items():
        if flops is not None and flops < FLOPS_PER_BYTE * moved:
            yield finding(
                "S109",
                f"{axes} carries {figures.size(moved)} a device and step for {figures.rate(flops)}FLOP of compute: "
                f"{flops / moved:.1f} FLOP a byte",
                "give each device more to do: a larger batch, longer sequences, or fewer devices on that axis",
                cost=moved,
            )


def _unnamed_dims(subject: Subject) -> Iterator[Finding]:
    if subject.idle_rules and not subject.axes_of("parameter") & set(subject.wide_axes):
        held = sum(bytes_per_device(array, subject.mesh) for array in subject.of_kind("parameter"))
        yield finding(
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
