"""Parameters that are gathered whole for a matrix product, though the product could be reduced instead."""

import math
from collections.abc import Iterator

from ..base import figures
from ..wire.descriptions import ArrayInfo, CollectiveInfo
from .finding import Finding, Subject, finding
from .layout import used_axes


def gathered_parameters(subject: Subject) -> Iterator[Finding]:
    """FSDP gathers along an axis that also splits the batch; along another one each device could multiply its part."""
    batch_axes = subject.axes_of("batch")
    gathers = [info for info in subject.collectives if info.gathered and not batch_axes & set(info.axes)]
    for array in subject.of_kind("parameter"):
        mine = [info for info in gathers if array.name in info.gathered and set(info.axes) <= used_axes(array)]
        if any(info.multiplied for info in mine):
            moved = sum(_bytes_of(array, info) for info in mine)
            axes = " × ".join(mine[0].axes)
            yield finding(
                "S106",
                f"{array.name} is gathered whole over {axes}, {figures.size(moved)} a device and step, "
                f"though the batch is not split over {axes}",
                "split a dim that the activations share, so that each device multiplies its part: heads, mlp or vocab",
                [array],
                moved,
                next((info.source for info in mine if info.multiplied), ""),
            )


def _bytes_of(array: ArrayInfo, gather: CollectiveInfo) -> int:
    """Its part of a gather of several arrays, which are of one dtype."""
    sizes = [math.prod(shape) for shape in gather.shapes]
    mine = sum(size for name, size in zip(gather.gathered, sizes, strict=False) if name == array.name)
    return (gather.bytes_per_device or gather.bytes_each) * mine // max(1, sum(sizes))
