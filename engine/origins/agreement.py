"""Estimated collectives beside those of the compiler, in bytes by kind and mesh axes."""

from collections.abc import Sequence

from ..base import figures
from ..wire.descriptions import CollectiveInfo
from .explanation import CollectiveOrigin


def differences(estimated: Sequence[CollectiveOrigin], found: Sequence[CollectiveInfo]) -> list[str]:
    """Returns one line for each kind of collective over the same axes whose bytes are not as estimated."""
    before, after = by_flow(estimated), by_flow(found)
    return [
        f"{kind} over {figures.over(axes)}: estimated {figures.size(before.get((kind, axes), 0))}, "
        f"compiled {figures.size(after.get((kind, axes), 0))}"
        for kind, axes in sorted({*before, *after})
        if before.get((kind, axes), 0) != after.get((kind, axes), 0)
    ]


def by_flow(collectives: Sequence[CollectiveOrigin | CollectiveInfo]) -> dict[tuple[str, tuple[str, ...]], int]:
    """Returns the bytes of collectives by kind and mesh axes; those of one execution if the count is unknown."""
    sums: dict[tuple[str, tuple[str, ...]], int] = {}
    for each in collectives:
        if isinstance(each, CollectiveInfo):
            size = each.bytes_each if each.bytes_per_device is None else each.bytes_per_device
        else:
            size = each.bytes
        key = each.kind, tuple(sorted(each.axes))
        sums[key] = sums.get(key, 0) + size
    return sums
