"""The timeline of a breakdown as spans, and what its cursor finds."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.base import formatting
from ...engine.wire.step_breakdown import TICKS, DeviceTimeline, OperationTime, StepBreakdown, Timeline


@dataclass(frozen=True)
class Shown:
    begin: int
    end: int
    operation: OperationTime | None
    """The operation, or the longest of several; None if the breakdown does not list it."""
    is_merged: bool
    is_waiting: bool = False
    """Whether it is a collective that others have not begun."""


@dataclass(frozen=True)
class DeviceLanes:
    device: int
    work: Sequence[Shown]
    collectives: Sequence[Shown]
    """Its collectives, waiting and in progress, in order."""


def device_lanes(breakdown: StepBreakdown, device: DeviceTimeline) -> DeviceLanes:
    waiting = _decoded(breakdown, device.waiting, True)
    collectives = sorted([*waiting, *_decoded(breakdown, device.collectives)], key=lambda span: span.begin)
    return DeviceLanes(device.device, _decoded(breakdown, device.work), collectives)


def widest(lane: Sequence[Shown], begin: float, end: float) -> tuple[Shown | None, float]:
    """Returns the span that takes most of a range of ticks, and the part of the range that spans take together."""
    at = max(0, bisect_right(lane, begin, key=lambda span: span.begin) - 2)
    best, most, total = None, 0.0, 0.0
    for span in lane[at:]:
        if span.begin >= end:
            break
        taken = min(span.end, end) - max(span.begin, begin)
        if taken > 0:
            total += taken
            best, most = (span, taken) if taken > most else (best, most)
    return best, total / (end - begin)


def in_words(span: Shown | None, timeline: Timeline) -> str:
    """Returns a span as text: `fusion.12, 0.4 ms, at 3.2 ms, blocks/mlp, model.py:93`; `nothing` for a gap."""
    if span is None:
        return "nothing"
    tick = timeline.seconds / TICKS
    name = _name(span.operation) if span.operation else "an operation that is not listed"
    waiting, mostly = "waiting for " * span.is_waiting, "mostly " * span.is_merged
    about = [f"{waiting}{mostly}{name}", formatting.seconds((span.end - span.begin) * tick)]
    about.append(f"at {formatting.seconds(span.begin * tick)}")
    if span.operation:
        about += filter(None, (span.operation.module, formatting.short_source(span.operation.source)))
    return ", ".join(about)


def _name(operation: OperationTime) -> str:
    """`fusion.12`, `all-reduce.3 over model`."""
    _, over, axes = operation.part.partition(" over ")
    return f"{operation.name}{over}{axes}"


def _decoded(breakdown: StepBreakdown, flat: Sequence[int], is_waiting: bool = False) -> list[Shown]:
    spans: list[Shown] = []
    until = 0
    for gap, length, at in zip(flat[::3], flat[1::3], flat[2::3], strict=False):
        begin, until = until + gap, until + gap + length
        index = -2 - at if at < -1 else at
        operation = breakdown.operations[index] if 0 <= index < len(breakdown.operations) else None
        spans.append(Shown(begin, until, operation, at < -1, is_waiting))
    return spans
