"""Divides the time of one device among what it does, by a sweep over intervals: nothing is counted twice."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

from .trace import Span

Key = TypeVar("Key", bound=Hashable)


class Rank(IntEnum):
    """Which of several activities at a time counts: the least."""

    WORK = 0
    """Computes or copies; several at a time share it."""
    EXPOSED = 1
    """A collective in progress."""
    WAITING = 2
    """A collective that others have not begun."""
    FLIGHT = 3
    """An asynchronous copy in flight."""


class Activity(NamedTuple):
    """Something that a device does."""

    begin: int
    end: int
    rank: Rank
    key: str


@dataclass
class Swept:
    """The time of one device, in picoseconds."""

    counted: dict[tuple[str, Rank], float] = field(default_factory=lambda: defaultdict(float))
    """By key and rank. All of these and the gaps add up to the time that was swept."""
    hidden: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time of collectives during which the device worked, by key."""
    gaps: list[Span] = field(default_factory=list[Span])
    """When the device did nothing."""


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
