"""The clocks of several processes, aligned by the collectives that they have in common.

Traces say when they began by the clock of their host, and the clocks of hosts differ. But a collective ends on no
device before it has begun on all of its group. So each execution bounds from both sides how far the clock of one
process is ahead of another's; the shortest executions bound it closest.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ..base.spans import Span
from .arrivals import Arrival, Arrivals, Execution
from .program import Program
from .recording import Recording

BARRIERS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all"}
"""Kinds of collectives that end on no device before they have begun on all."""
MAX_ARRIVALS = 200_000
"""Arrivals that the processes send each other, some twenty bytes each: with more, fewer steps are broken down."""
Group = tuple[Execution, tuple[int, ...]]
"""An execution among the devices of one group."""


class Traced(Struct, frozen=True):
    """Steps and arrivals in the trace of a process."""

    steps: list[int]
    """Numbers of the whole steps; empty if its host has not annotated them."""
    arrivals: int
    """Arrivals of its devices in these steps that other processes need."""


class Shared(Struct, frozen=True):
    """The part of a trace that a process sends to the others."""

    epoch: int | None
    """Nanoseconds from 1970 until its time 0, by the clock of its host; None if unknown."""
    window: tuple[int, int]
    """Picoseconds, by its own clock: from the start of the first step to the end of the last operation."""
    shown: tuple[int, int]
    """Begin and end of the step in the timeline."""
    arrivals: dict[str, list[tuple[int, int, int, int, int, int]]]
    """Arrivals at each collective among several processes: step, execution within the step, position of the device in
    the mesh, and nanoseconds since the window began: begin, end, done. See `Arrival`."""


class Offset(Struct, frozen=True):
    """The lag of a clock behind the clock of process 0."""

    picoseconds: int
    """Add it to a time by the process's clock."""
    error: int
    """Picoseconds by which it may be wrong."""


def traced(recording: Recording) -> Traced:
    return Traced(recording.steps if recording.has_numbers else [], len(list(_needed(recording))))


def kept_steps(found: Sequence[Traced]) -> list[int]:
    """Returns the steps that every process has traced whole, as many as there is room for; empty if there is none."""
    common = [step for step in found[0].steps if all(step in each.steps for each in found)]
    per_step = sum(each.arrivals / max(1, len(each.steps)) for each in found)
    return common[: max(1, int(MAX_ARRIVALS / per_step))] if per_step else common


def shared(recording: Recording) -> Shared:
    """Returns the part of a recording that the other processes need."""
    window = recording.window
    found: dict[str, list[tuple[int, int, int, int, int, int]]] = {}
    for (step, name, at), position, each in _needed(recording):
        times = [(time - window[0]) // 1000 for time in each]
        found.setdefault(name, []).append((step, at, position, times[0], times[1], times[2]))
    return Shared(recording.trace.epoch, window, recording.shown_window, found)


def _needed(recording: Recording) -> Iterator[tuple[Execution, int, Arrival]]:
    """The arrivals at collectives that devices of other processes take part in."""
    own = set(recording.positions)
    for execution, devices in recording.arrivals.found.items():
        for position, each in devices.items():
            if not own.issuperset(recording.program.partners(execution[1], position)):
                yield execution, position, each


class Clocks:
    """The clocks of all processes of a run. Times by the clock of process 0 are common to all."""

    def __init__(self, found: Sequence[Shared], program: Program) -> None:
        """`found`: from each process."""
        self._found = found
        self.offsets = _offsets(found, program)
        """The offset of each process; None if it shares no collective with process 0, directly or through others."""

    @property
    def window(self) -> Span:
        """The time that all processes divide: from their first step to their last operation, by the common clock."""
        return self._together([each.window for each in self._found])

    @property
    def shown(self) -> Span:
        return self._together([each.shown for each in self._found])

    @property
    def error(self) -> int | None:
        """Picoseconds by which an offset may be wrong, at worst; None if there is none."""
        return max((offset.error for offset in self.offsets[1:] if offset), default=None)

    def by_clock(self, process: int, span: Span) -> Span:
        return span[0] - self._shift(process), span[1] - self._shift(process)

    def add_arrivals(self, arrivals: Arrivals, process: int) -> None:
        """Adds the arrivals of all other processes to `arrivals` of one process, by its clock."""
        for other, theirs in enumerate(self._found):
            if other != process and self.offsets[other] and self.offsets[process]:
                shift = self._shift(other) - self._shift(process)
                for execution, devices in _arrivals_in(theirs).items():
                    for position, each in devices.items():
                        arrivals.put(execution, position, each.shifted(shift))

    def _together(self, spans: Sequence[Span]) -> Span:
        """The time from the first begin to the last end of one span of each process."""
        shifts = [self._shift(process) for process in range(len(spans))]
        common = [(shift + begin, shift + end) for shift, (begin, end) in zip(shifts, spans, strict=True)]
        return min(begin for begin, _ in common), max(end for _, end in common)

    def _shift(self, process: int) -> int:
        """Picoseconds to add to a clock. Processes that share no collective are taken to begin together."""
        offset = self.offsets[process]
        return offset.picoseconds if offset else self._found[0].window[0] - self._found[process].window[0]


def _arrivals_in(found: Shared) -> Mapping[Execution, Mapping[int, Arrival]]:
    """The arrivals of a process, by its own clock."""
    executions: dict[Execution, dict[int, Arrival]] = {}
    for name, rows in found.arrivals.items():
        for step, at, position, *times in rows:
            arrival = Arrival(*(found.window[0] + 1000 * time for time in times))
            executions.setdefault((step, name, at), {})[position] = arrival
    return executions


def _offsets(found: Sequence[Shared], program: Program) -> list[Offset | None]:
    groups = [_groups(each, program) for each in found]
    known: list[Offset | None] = [Offset(0, 0), *[None] * (len(found) - 1)]
    reached = [0]
    for other in reached:  # grows as processes are reached
        base = known[other]
        for process, own in enumerate(groups):
            if known[process] is None and base and (bound := _bound(groups[other], own)):
                offset = _within(bound, found[other].epoch, found[process].epoch)
                known[process] = Offset(base.picoseconds + offset.picoseconds, base.error + offset.error)
                reached.append(process)
    return known


def _groups(found: Shared, program: Program) -> Mapping[Group, Span]:
    """For each execution in a group: the begin on the last device of a process, and the first time that one is done."""
    spans: dict[Group, Span] = {}
    for execution, devices in _arrivals_in(found).items():
        if program.collectives[execution[1]].kind not in BARRIERS:
            continue
        for position, each in devices.items():
            group = execution, program.partners(execution[1], position)
            begin, done = spans.get(group, (each.begin, each.done))
            spans[group] = max(begin, each.begin), min(done, each.done)
    return spans


def _bound(one: Mapping[Group, Span], other: Mapping[Group, Span]) -> Span | None:
    """The least and the most that the clock of `other` can be behind the clock of `one`."""
    common = one.keys() & other.keys()
    if not common:
        return None
    least = max(one[group][0] - other[group][1] for group in common)
    most = min(one[group][1] - other[group][0] for group in common)
    return min(least, most), max(least, most)


def _within(bound: Span, epoch: int | None, other: int | None) -> Offset:
    """The offset by the clocks of the hosts, within the bound; without them, the middle of the bound."""
    least, most = bound
    offset = (least + most) // 2 if epoch is None or other is None else max(least, min(1000 * (other - epoch), most))
    return Offset(offset, max(offset - least, most - offset))
