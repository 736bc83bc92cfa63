"""Parameters that are all-gathered for a matrix product, although the product could be reduced instead."""

import math
from collections.abc import Iterator

from ..base import figures
from ..wire.descriptions import ArrayInfo, CollectiveInfo
from .finding import Finding, Subject, finding
from .layout import used_axes


def gathered_parameters(subject: Subject) -> Iterator[Finding]:
    """Yields S106. FSDP gathers over axes that split the batch; over others, a device could multiply its own part."""
    batch_axes = subject.axes_of("batch")
    gathers = [info for info in subject.collectives if info.gathered and not batch_axes & set(info.axes)]
    for array in subject.of_kind("parameter"):
        mine = [info for info in gathers if array.name in info.gathered and set(info.axes) <= used_axes(array)]
        if any(info.multiplied for info in mine):
            moved = sum(_bytes_of(array, info) for info in mine)
            axes = " × ".join(mine[0].axes)
            yield finding(
                "S106",
                f"{array.name} is all-gathered over {axes}, {figures.size(moved)} per device and step, "
                f"although the batch is not split over {axes}",
                "split a dim that activations have, too (heads, mlp or vocab), so that each device multiplies its part",
                [array],
                moved,
                next((info.source for info in mine if info.multiplied), ""),
                list(dict.fromkeys(axis for info in mine for axis in info.axes)),
            )


def _bytes_of(array: ArrayInfo, gather: CollectiveInfo) -> int:
    """Bytes per device of `array` in a gather of several arrays, which all have one dtype."""
    sizes = [math.prod(shape) for shape in gather.shapes]
    mine = sum(size for name, size in zip(gather.gathered, sizes, strict=False) if name == array.name)
    return gather.least_bytes * mine // max(1, sum(sizes))
