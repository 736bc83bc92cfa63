"""Collectives added up by kind and mesh axes: what a step moves where, and how two presets differ in it."""

from collections.abc import Sequence

from msgspec import Struct

from ..wire.descriptions import CollectiveInfo

Key = tuple[str, tuple[str, ...]]
"""Kind and axes."""


class Flow(Struct, frozen=True, kw_only=True):
    """All collectives of one kind over the same axes."""

    kind: str
    axes: list[str]
    count: int | None
    """Times in a step; None where one of them runs an unknown number of times."""
    bytes_per_device: int | None
    """In a step; None likewise."""
    bytes_known: int
    """Of those whose number is known."""
    bytes_sent: int
    """Likewise: what one device sends to its neighbours on rings, see `sent`."""


class FlowChange(Struct, frozen=True, kw_only=True):
    """A flow under one preset and under another; 0 times where it is not there."""

    kind: str
    axes: list[str]
    count: int | None
    other_count: int | None
    bytes_per_device: int | None
    other_bytes_per_device: int | None


def flows(collectives: Sequence[CollectiveInfo]) -> list[Flow]:
    """The one that moves most first."""
    groups: dict[Key, list[CollectiveInfo]] = {}
    for info in collectives:
        groups.setdefault((info.kind, tuple(info.axes)), []).append(info)
    found = [_flow(kind, axes, infos) for (kind, axes), infos in groups.items()]
    return sorted(found, key=lambda flow: -flow.bytes_known)


def changes(before: Sequence[CollectiveInfo], after: Sequence[CollectiveInfo]) -> list[FlowChange]:
    """Every flow of either side."""
    old, new = ({(flow.kind, tuple(flow.axes)): flow for flow in flows(side)} for side in (before, after))
    return [
        FlowChange(
            kind=kind,
            axes=list(axes),
            count=there.count if (there := old.get((kind, axes))) else 0,
            other_count=here.count if (here := new.get((kind, axes))) else 0,
            bytes_per_device=there.bytes_per_device if there else 0,
            other_bytes_per_device=here.bytes_per_device if here else 0,
        )
        for kind, axes in dict.fromkeys((*old, *new))
    ]


def sent(kind: str, size: int, group_size: int) -> float:
    """Bytes that each member of a group sends for a collective of `size` bytes, as rings do it.

    A gather or a scatter of V bytes over n devices sends V (n - 1) / n, a reduction that twice, a permutation all of V
    (Chan et al. 2007, "Collective communication", table II; an exchange as in its scatter).
    """
    if kind in ("collective-permute", "collective-broadcast"):
        return size if group_size > 1 else 0.0
    return (2 if kind == "all-reduce" else 1) * size * (group_size - 1) / group_size


def _flow(kind: str, axes: tuple[str, ...], infos: Sequence[CollectiveInfo]) -> Flow:
    counts = [info.count for info in infos if info.count is not None]
    known = sum(info.bytes_per_device or 0 for info in infos)
    complete = len(counts) == len(infos)
    return Flow(
        kind=kind,
        axes=list(axes),
        count=sum(counts) if complete else None,
        bytes_per_device=known if complete else None,
        bytes_known=known,
        bytes_sent=round(sum(sent(kind, info.bytes_per_device or 0, info.group_size) for info in infos)),
    )
