"""Findings about what devices compute and send: repeated products, gathered parameters, layers that wait for DCN."""

import math
from collections.abc import Iterator, Mapping, Sequence

from ..base import formatting
from ..wire.collective import CollectiveInfo
from ..wire.descriptions import ArrayInfo, ProductInfo
from .finding import Finding, Subject
from .layout import dim_name, used_axes

REPEATED = 1.2
"""Reported from this factor on. A lower one can come from a few dims that do not divide."""
MAX_PARTS = 3
"""Parts of the step that a message lists."""
PARALLELISM = {
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "seq": "sequence",
    "keys": "sequence",
}
"""Logical axis to the parallelism of a mesh axis that splits it. Its collectives are in every layer, before the next
operation can begin; a batch axis carries gradients, once per step."""


def repeated_products(subject: Subject) -> Iterator[Finding]:
    """Yields S105 if all devices together compute more than the FLOPs of the step as its code is written."""
    devices, products = len(subject.mesh.device_ids), subject.compiled.products
    needed = sum(info.flops for info in products)
    computed = devices * sum(info.flops_per_device for info in products)
    if computed < REPEATED * needed or not needed:
        return
    wasteful = sorted(products, key=lambda info: info.flops - devices * info.flops_per_device)
    crowded = _crowded(subject)
    parameters = _parameters(subject, wasteful[0].scope)
    why = f"; {', '.join(sorted(crowded))} stay unsharded, since the batch uses their mesh axes" if crowded else ""
    yield Finding(
        "S105",
        f"the devices compute {formatting.rate(computed)}FLOP of matrix products, but a step needs "
        f"{formatting.rate(needed)}FLOP: {computed / needed:.2f} times as many{_parts(wasteful, devices)}{why}",
        _hint(subject),
        [array.name for array in parameters],
        source=wasteful[0].source,
        dims=_shared_dims(subject, parameters),
    )


def _parameters(subject: Subject, scope: str) -> list[ArrayInfo]:
    """Returns the matrices that a scope multiplies with: its parameters of two dims or more, `layers` aside."""
    inside = [array for array in subject.of_kind("parameter") if array.name.startswith(f"{scope.replace('/', '.')}.")]
    return [array for array in inside if sum(axis != "layers" for axis in array.logical_axes) > 1]


def _shared_dims(subject: Subject, parameters: Sequence[ArrayInfo]) -> list[str]:
    """Returns the logical axes of parameters that activations have, too: splitting one of them splits a product."""
    activations = {axis for array in subject.of_kind("activation") for axis in array.logical_axes}
    return sorted({axis for array in parameters for axis in array.logical_axes if axis} & activations)


def _parts(wasteful: Sequence[ProductInfo], devices: int) -> str:
    factors = {info.scope: devices * info.flops_per_device / info.flops for info in wasteful if info.scope}
    parts = [f"{scope} {factor:.2f} times" for scope, factor in factors.items() if factor >= REPEATED]
    return f": {formatting.listed(parts, MAX_PARTS)}" if parts else ""


def _hint(subject: Subject) -> str:
    batch = [axis for axis in subject.wide_axes if axis in subject.axes_of("batch")]
    others = [axis for axis in subject.wide_axes if axis not in batch]
    if not others:
        return "add sharding constraints that keep activations split like the batch"
    axes = ", ".join(f'"{axis}"' for axis in (*batch, others[0]))
    return (
        f"split these products over {others[0]} too: with rules for heads, mlp and vocab, or with the batch's rule, "
        f"batch = {f'[{axes}]' if batch else axes}"
    )


def _crowded(subject: Subject) -> set[str]:
    """Logical axes of activations that cannot use their mesh axes, since another dim of the array uses them."""
    return {
        dim_name(array, dim)
        for array in subject.of_kind("activation")
        for dim, axes in enumerate(array.dropped_axes)
        if set(axes) & used_axes(array)
    }


def gathered_parameters(subject: Subject) -> Iterator[Finding]:
    """Yields S106. FSDP gathers over axes that split the batch; over others, a device could multiply its own part."""
    batch_axes = subject.axes_of("batch")
    gathers = [info for info in subject.collectives if info.gathered and not batch_axes & set(info.axes)]
    for array in subject.of_kind("parameter"):
        mine = [info for info in gathers if array.name in info.gathered and set(info.axes) <= used_axes(array)]
        if any(info.multiplied for info in mine):
            moved = sum(_bytes_of(array, info) for info in mine)
            axes = list(dict.fromkeys(axis for info in mine for axis in info.axes))
            over = " × ".join(axes)
            yield Finding(
                "S106",
                f"{array.name} is all-gathered over {over}, {formatting.size(moved)} per device and step, "
                f"although the batch is not split over {over}",
                "split a dim that activations have, too (heads, mlp or vocab), so that each device multiplies its part",
                [array.name],
                moved,
                next(info.source for info in mine if info.multiplied),
                axes,
            )


def _bytes_of(array: ArrayInfo, gather: CollectiveInfo) -> int:
    """Bytes per device of `array` in a gather of several arrays, which all have one dtype."""
    sizes = [math.prod(shape) for shape in gather.shapes]
    mine = sum(size for name, size in zip(gather.gathered, sizes, strict=False) if name == array.name)
    return gather.least_bytes * mine // max(1, sum(sizes))


def over_dcn(split: Mapping[str, set[str]], sent: Mapping[str, int]) -> Iterator[Finding]:
    """Yields a finding for each tensor or sequence axis that crosses slices.

    `split`: mesh axis to the logical axes that it splits. `sent`: each mesh axis that crosses slices, to the bytes that
    a device sends for its collectives on DCN in a step; 0 if unknown.
    """
    for axis, size in sent.items():
        dims = sorted(split.get(axis, set()) & PARALLELISM.keys())
        if not dims or {"batch", "layers"} & split[axis]:  # pipeline stages may split the vocabulary, too
            continue
        traffic = f", {formatting.size(size)} sent per device and step" if size else ""
        yield Finding(
            "S111",
            f"{axis} is a {PARALLELISM[dims[0]]} axis ({', '.join(dims)}) and crosses slices: every layer waits for "
            f"DCN{traffic}",
            f"put another axis first in [mesh], such as data, a multiple of the slices: then {axis} stays inside one",
            bytes_per_device=size,
            axes=[axis],
            dims=dims,
        )
