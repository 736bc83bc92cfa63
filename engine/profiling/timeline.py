"""The activities of a device: its time divided among them, and one step of them as spans."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from ..base.spans import Span
from ..wire.step_breakdown import TICKS, DeviceTimeline

MAX_DEVICES = 8
"""Devices with a timeline: the ones that others wait for longest and least."""
MAX_SPANS = 1000
"""Spans of a device, half of them work. In JSON, one takes about ten bytes."""

Named = tuple[int, int, str, bool]
"""Begin and end in ticks, the operation that takes most of it, and whether it is one of several."""


class Rank(IntEnum):
    """Of several activities at a time, the least counts."""

    WORK = 0
    """Computes or copies; several at a time share it."""
    EXPOSED = 1
    """A collective in progress."""
    WAITING = 2
    """A collective that others have not begun."""
    FLIGHT = 3
    """An asynchronous copy in flight."""


class Activity(NamedTuple):
    """An operation in progress on a device, in picoseconds."""

    begin: int
    end: int
    rank: Rank
    key: str


@dataclass
class Swept:
    """The time of one device, in picoseconds."""

    counted: dict[tuple[str, Rank], float] = field(default_factory=lambda: defaultdict(float))
    """By key and rank. The sum of all and the gaps is the time that was swept."""
    hidden: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time of collectives during which the device worked, by key."""
    gaps: list[Span] = field(default_factory=list[Span])
    """Times without any activity."""


class DeviceSpans(Struct, frozen=True):
    """The step of one device, in ticks: `TICKS` make up the step."""

    position: int
    """Its position in the mesh."""
    id: int
    """Its id."""
    work: list[Named]
    """Operations, without asynchronous copies."""
    waiting: list[Named]
    """Collectives that others have not begun."""
    collectives: list[Named]
    """Collectives in progress after that, whether the device works or not."""


def sweep(activities: Iterable[Activity], window: Span) -> Swept:
    """Divides the window among activities."""
    found = Swept()
    active: dict[tuple[Rank, str], int] = {}
    at, end = window
    for time, change, state in _edges(activities, window):
        if time > at:
            _count(found, active, at, time)
            at = time
        active[state] = active.get(state, 0) + change
        if not active[state]:
            del active[state]
    if end > at:
        found.gaps.append((at, end))
    return found


def _edges(activities: Iterable[Activity], window: Span) -> Sequence[tuple[int, int, tuple[Rank, str]]]:
    low, high = window
    edges: list[tuple[int, int, tuple[Rank, str]]] = []
    for begin, end, rank, key in activities:
        begin, end = max(begin, low), min(end, high)
        if end > begin:
            edges += ((begin, 1, (rank, key)), (end, -1, (rank, key)))
    return sorted(edges)


def _count(found: Swept, active: dict[tuple[Rank, str], int], begin: int, end: int) -> None:
    if not active:
        found.gaps.append((begin, end))
        return
    first = min(rank for rank, _ in active) if len(active) > 1 else next(iter(active))[0]
    counted = [key for rank, key in active if rank == first]
    for key in counted:
        found.counted[key, first] += (end - begin) / len(counted)
    if first == Rank.WORK and len(active) > len(counted):
        for key in {key for rank, key in active if rank in (Rank.EXPOSED, Rank.WAITING)}:
            found.hidden[key] += end - begin


def device_spans(position: int, id: int, activities: Sequence[Activity], window: Span) -> DeviceSpans:
    """Returns the spans of a device in the window of one step. `activities`: what it does, in any order."""

    def lane(rank: Rank, limit: int) -> list[Named]:
        spans = ((each.begin, each.end, each.key) for each in activities if each.rank == rank)
        return _merged_to(limit, _in_ticks(spans, window))

    work = lane(Rank.WORK, MAX_SPANS // 2)
    return DeviceSpans(position, id, work, lane(Rank.WAITING, MAX_SPANS // 4), lane(Rank.EXPOSED, MAX_SPANS // 4))


def encoded(device: DeviceSpans, names: Sequence[str]) -> DeviceTimeline:
    known = {name: at for at, name in enumerate(names)}
    lanes = (_encoded(lane, known) for lane in (device.work, device.waiting, device.collectives))
    return DeviceTimeline(device.id, *lanes)


def _in_ticks(spans: Iterable[tuple[int, int, str]], window: Span) -> list[tuple[float, float, str]]:
    """The spans within the window, in order and without overlaps: at any time, the one that began first."""
    low, high = window
    found: list[tuple[float, float, str]] = []
    until = low
    for begin, end, name in sorted(spans):
        begin, end = max(begin, until), min(end, high)
        if end > begin:
            scale = TICKS / (high - low)
            found.append(((begin - low) * scale, (end - low) * scale, name))
            until = end
    return found


def _merged_to(limit: int, spans: Sequence[tuple[float, float, str]]) -> list[Named]:
    """Merges neighbours at the finest resolution at which at most `limit` spans remain."""
    resolution = 1
    while len(found := _merged(spans, resolution)) > limit:
        resolution *= 2
    return found


def _merged(spans: Sequence[tuple[float, float, str]], resolution: int) -> list[Named]:
    """Merges spans that are shorter than the resolution with what follows them closer than it."""
    found: list[Named] = []
    first, last, name, longest, count = 0.0, 0.0, "", 0.0, 0

    def close() -> None:
        begin, end = round(first), max(round(last), round(first) + 1)
        if count:
            found.append((begin, end, name, count > 1))

    for begin, end, other in spans:
        if not count or begin - last >= resolution or last - first >= resolution:
            close()
            first, name, longest, count = begin, other, end - begin, 0
        if end - begin > longest:
            name, longest = other, end - begin
        last, count = end, count + 1
    close()
    return found


def _encoded(lane: Sequence[Named], known: dict[str, int]) -> list[int]:
    flat: list[int] = []
    until = 0
    for begin, end, name, is_merged in lane:
        begin, end = max(begin, until), min(max(end, until + 1), TICKS)
        if begin < end:  # rounded, one may begin at the end of the step
            at = known.get(name, -1)
            flat += (begin - until, end - begin, -2 - at if is_merged and at >= 0 else at)
            until = end
    return flat
