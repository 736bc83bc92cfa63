"""Finds what is likely to be wrong with a preset, from the description of its compiled step. Codes are stable.

These are pure functions of what the engine reports, so the UI, the command line and tests all call `lint`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..base import formatting
from ..wire.descriptions import ArrayInfo, MeshInfo
from ..wire.events import PresetCompiled, PresetInspected
from .finding import Finding, Subject
from .layout import bytes_per_device, dim_name, is_same_layout, replicas, shard_shape, used_axes
from .operation_findings import gathered_parameters, over_dcn, repeated_products

LARGE_BYTES = 2**20
"""Bytes per device that splitting an array must save for S101 to report it."""
FLOPS_PER_BYTE = 10.0
"""With fewer, compute cannot hide communication: chips compute 100 to 10,000 FLOP while a byte crosses a link."""
LARGE_FRACTION = 0.05
"""The fraction of a device's parameter bytes that splitting an array must save for S101 to report it."""


def lint(compiled: PresetCompiled, inspected: PresetInspected | None, flops_per_step: float | None) -> list[Finding]:
    """Returns the findings in the order of their codes.

    Without `inspected`, checks of activations, gradients and rematerializations are left out; without `flops_per_step`
    (of all devices), S109 is.
    """
    subject = Subject(compiled, inspected, flops_per_step)
    checks = (
        _replicated_parameters,
        _replicated_moments,
        _indivisible_dims,
        _idle_axes,
        repeated_products,
        gathered_parameters,
        _rematerializations,
        _other_layouts,
        _traffic_over_compute,
        _unnamed_dims,
        _layers_over_dcn,
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
            if axis in used_axes(array) or saved < max(LARGE_BYTES, LARGE_FRACTION * held):
                continue
            lengths = shard_shape(array.shape, array.compiled_spec, subject.mesh)
            longest = max((length, dim) for dim, length in enumerate(lengths))[1]
            if lengths[longest] % size == 0:
                name = dim_name(array, longest)
                yield Finding(
                    "S101",
                    f"{array.name} is replicated over the {size} devices of {axis}: {formatting.size(saved)} of its "
                    f"{formatting.size(each)} on each device could be saved",
                    f'split {name} over {axis}: add the rule {name} = "{axis}" or an override',
                    [array.name],
                    saved,
                    axes=[axis],
                )


def _replicated_moments(subject: Subject) -> Iterator[Finding]:
    parameters = subject.of_kind("parameter")
    wasteful: list[ArrayInfo] = []
    saved = 0
    for moment in subject.of_kind("moment"):
        named = (array for array in parameters if moment.name.endswith(f".{array.name}"))
        parameter = max(named, key=lambda array: len(array.name), default=None)  # of `a.b` also ends in `b`
        if parameter and replicas(moment.compiled_spec, subject.mesh) > replicas(parameter.compiled_spec, subject.mesh):
            wasteful.append(moment)
            saved += bytes_per_device(moment, subject.mesh) - bytes_per_device(parameter, subject.mesh)
    if wasteful:
        yield Finding(
            "S102",
            f"{_names(wasteful)} are split over fewer devices than their parameters: "
            f"{formatting.size(saved)} per device could be saved",
            "split the optimizer state like the parameters: remove the override, or pass `jit` out_shardings for it",
            [moment.name for moment in wasteful],
            saved,
        )


def _indivisible_dims(subject: Subject) -> Iterator[Finding]:
    for array in subject.arrays:
        held = bytes_per_device(array, subject.mesh)
        for dim, axes in enumerate(array.dropped_axes):
            count = math.prod(subject.mesh.axes[axis] for axis in axes)
            if array.shape[dim] % count:
                name = dim_name(array, dim)
                yield Finding(
                    "S103",
                    f"{array.name}: {name} {array.shape[dim]} does not divide by {count} ({' × '.join(axes)}), "
                    f"so it is unsharded: {formatting.size(held)} per device",
                    f"make it a multiple of {count}, or remove the rule for {name}",
                    [array.name],
                    held,
                    axes=axes,
                )


def _idle_axes(subject: Subject) -> Iterator[Finding]:
    if not subject.of_kind("batch"):
        return  # the batch of a watched run is unknown, and it is what a preset splits first
    used = subject.axes_of("parameter", "moment", "batch", "gradient", "activation")
    for axis, size in subject.wide_axes.items():
        if axis not in used:
            yield Finding(
                "S104",
                f"nothing is split over {axis}: its {size} devices hold and compute the same",
                f'use it in a rule, such as batch = "{axis}", or give its {size} devices to another axis',
                axes=[axis],
            )


def _rematerializations(subject: Subject) -> Iterator[Finding]:
    for found in subject.inspected.rematerializations if subject.inspected else ():
        known = [array for array in subject.arrays if _has_shape(array, found.shape, subject.mesh)]
        where = f" at {found.source}" if found.source else f" in {found.op_name}" if found.op_name else ""
        which = f"; arrays of that shape: {_names(known)}" if known else ""
        yield Finding(
            "S107",
            f"{found.operation}{where} is replicated to reshard it "
            f"from {found.from_sharding} to {found.to_sharding}{which}",
            "add a sharding constraint with one layout on both sides of that operation, or change the rule of one side",
            [array.name for array in known],
            source=found.source,
        )


def _has_shape(array: ArrayInfo, shape: Sequence[int], mesh: MeshInfo) -> bool:
    return list(shape) in (list(array.shape), list(shard_shape(array.shape, array.compiled_spec, mesh)))


def _other_layouts(subject: Subject) -> Iterator[Finding]:
    for array in subject.arrays:
        if is_same_layout(array.spec, array.compiled_spec, subject.mesh):
            continue
        intended = math.prod(shard_shape(array.shape, array.spec, subject.mesh))
        compiled = math.prod(shard_shape(array.shape, array.compiled_spec, subject.mesh))
        if array.kind == "activation" and compiled <= intended:
            continue  # the compiler chose, and split it further
        yield Finding(
            "S108",
            f"{array.name}: intended {formatting.spec(array.spec)}, compiled {formatting.spec(array.compiled_spec)}",
            "add a sharding constraint, or change the preset to what the compiler chose",
            [array.name],
            bytes_per_device(array, subject.mesh),
        )


def _traffic_over_compute(subject: Subject) -> Iterator[Finding]:
    if subject.flops_per_step is None:
        return
    flops, moved = subject.flops_per_step / len(subject.mesh.device_ids), Counter[tuple[str, ...]]()
    for info in subject.collectives:
        moved[tuple(info.axes)] += info.bytes_sent or 0
    for axes, size in moved.items():
        if flops < FLOPS_PER_BYTE * size:
            yield Finding(
                "S109",
                f"{formatting.over(axes)} carries {formatting.size(size)} per device and step "
                f"for {formatting.rate(flops)}FLOP of compute: {flops / size:.1f} FLOP per byte",
                "give each device more to compute: a larger batch, longer sequences, or fewer devices on that axis",
                bytes_per_device=size,
                axes=list(axes),
            )


def _unnamed_dims(subject: Subject) -> Iterator[Finding]:
    if subject.compiled.unused_rules and not subject.axes_of("parameter") & set(subject.wide_axes):
        held = sum(bytes_per_device(array, subject.mesh) for array in subject.of_kind("parameter"))
        yield Finding(
            "S110",
            f"no parameter is split, each device holds all {formatting.size(held)} of them: the preset has rules for "
            f"{', '.join(subject.compiled.unused_rules)}, but the model has no such logical axis",
            "name the dims of its parameters, for example with nnx.with_partitioning(init, ('embed', 'mlp')), or split "
            "arrays by name in [overrides]",
            [array.name for array in subject.of_kind("parameter")],
            held,
        )


def _layers_over_dcn(subject: Subject) -> Iterator[Finding]:
    split: dict[str, set[str]] = {}
    for array in subject.arrays:
        for dim, axes in enumerate(array.compiled_spec):
            for axis in axes:
                split.setdefault(axis, set()).add(dim_name(array, dim))
    sent: Counter[str] = Counter()
    for info in subject.collectives:
        for axis in info.axes if info.network == "dcn" else ():
            sent[axis] += info.bytes_sent or 0
    yield from over_dcn(split, sent)


def _names(arrays: Sequence[ArrayInfo]) -> str:
    return formatting.listed([array.name for array in arrays], 2)
