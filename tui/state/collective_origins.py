"""Joins the collectives of a compiled step to those that the partitioner's passes estimate."""

from collections.abc import Sequence

from ...engine.origins.explanation import CollectiveOrigin
from ...engine.wire.descriptions import CollectiveInfo


def origins_of(info: CollectiveInfo, estimated: Sequence[CollectiveOrigin]) -> list[CollectiveOrigin]:
    """Returns the estimated collectives of the same kind over the same axes, for the same source line."""
    same = (each for each in estimated if (each.kind, each.source) == (info.kind, info.source))
    return [each for each in same if info.source and whole_axes(each) == set(info.axes)]


def similar(info: CollectiveInfo, estimated: Sequence[CollectiveOrigin]) -> list[CollectiveOrigin]:
    """Returns the estimated collectives for the same source line; without any, those of the same kind and axes."""
    at_line = [each for each in estimated if info.source and each.source == info.source]
    return at_line or [each for each in estimated if each.kind == info.kind and whole_axes(each) == set(info.axes)]


def because(info: CollectiveInfo, estimated: Sequence[CollectiveOrigin]) -> list[str] | None:
    """Returns why a compiled collective is needed; None if the passes estimate none that can be joined to it."""
    reasons = dict.fromkeys(text for each in origins_of(info, estimated) for text in each.because)
    return list(reasons) or None


def whole_axes(each: CollectiveOrigin) -> set[str]:
    """Returns the mesh axes that a collective communicates over, also where it does so over a part of one."""
    return {axis.partition(":")[0] for axis in each.axes}
