"""Matrix products that devices compute more than once between them."""

from collections.abc import Iterator, Sequence

from ..base import figures
from ..wire.descriptions import ProductInfo
from .finding import Finding, Subject, finding
from .layout import dim_name, used_axes

REPEATED = 1.2
"""Times what the step needs: below it, it is what a few dims that do not divide cost."""
MOST_PARTS = 3


def repeated_products(subject: Subject) -> Iterator[Finding]:
    """What all devices compute is compared with what the step as it is written does on however many of them."""
    devices, products = len(subject.mesh.device_ids), subject.products
    needed = sum(info.flops for info in products)
    computed = devices * sum(info.flops_per_device for info in products)
    if computed < REPEATED * needed or not needed:
        return
    wasteful = sorted(products, key=lambda info: info.flops - devices * info.flops_per_device)
    crowded = _crowded(subject)
    why = f"; {', '.join(sorted(crowded))} want axes that the batch has taken" if crowded else ""
    yield finding(
        "S105",
        f"the devices compute {figures.rate(computed)}FLOP of matrix products for {figures.rate(needed)}FLOP that a "
        f"step needs, {computed / needed:.2f} times{_parts(wasteful, devices)}{why}",
        _way_out(subject),
        source=wasteful[0].source,
    )


def _parts(wasteful: Sequence[ProductInfo], devices: int) -> str:
    factors = {info.scope: devices * info.flops_per_device / info.flops for info in wasteful if info.scope}
    told = [f"{scope} {factor:.2f} times" for scope, factor in factors.items() if factor >= REPEATED]
    more = f" and {len(told) - MOST_PARTS} more" if len(told) > MOST_PARTS else ""
    return f": {', '.join(told[:MOST_PARTS])}{more}" if told else ""


def _way_out(subject: Subject) -> str:
    batch = [axis for axis in subject.wide_axes if axis in subject.axes_of("batch")]
    left = [axis for axis in subject.wide_axes if axis not in batch]
    if not left:
        return "ask for activations that stay split as the batch is, with sharding constraints"
    axes = ", ".join(f'"{axis}"' for axis in (*batch, left[0]))
    return (
        f"split what these products take over {left[0]} too: by the rules of heads, mlp and vocab, or by the batch's, "
        f"batch = {f'[{axes}]' if batch else axes}"
    )


def _crowded(subject: Subject) -> set[str]:
    """Logical axes of activations that could not have their mesh axis, since another dim of the array has it."""
    return {
        dim_name(array, dim)
        for array in subject.of_kind("activation")
        for dim, axes in enumerate(array.fell_back)
        if set(axes) & used_axes(array)
    }
