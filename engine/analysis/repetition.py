"""Matrix products that several devices repeat."""

from collections.abc import Iterator, Sequence

from ..base import figures
from ..wire.descriptions import ArrayInfo, ProductInfo
from .finding import Finding, Subject, finding
from .layout import dim_name, used_axes

REPEATED = 1.2
"""Reported from this factor on. A lower one can come from a few dims that do not divide."""
MAX_PARTS = 3
"""Parts of the step that a message lists."""


def repeated_products(subject: Subject) -> Iterator[Finding]:
    """Yields S105 if all devices together compute more than the FLOPs of the step as its code is written."""
    devices, products = len(subject.mesh.device_ids), subject.products
    needed = sum(info.flops for info in products)
    computed = devices * sum(info.flops_per_device for info in products)
    if computed < REPEATED * needed or not needed:
        return
    wasteful = sorted(products, key=lambda info: info.flops - devices * info.flops_per_device)
    crowded = _crowded(subject)
    parameters = _parameters(subject, wasteful[0].scope)
    why = f"; {', '.join(sorted(crowded))} stay unsharded, since the batch uses their mesh axes" if crowded else ""
    yield finding(
        "S105",
        f"the devices compute {figures.rate(computed)}FLOP of matrix products, but a step needs "
        f"{figures.rate(needed)}FLOP: {computed / needed:.2f} times as many{_parts(wasteful, devices)}{why}",
        _hint(subject),
        parameters,
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
    return f": {figures.listed(parts, MAX_PARTS)}" if parts else ""


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
