"""The trace of one process, joined with its program: the time of each device divided among the parts of the step."""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.spans import Span, union
from ..base.user_error import UserError
from .arrivals import Arrivals
from .partial_breakdown import DeviceBreakdown, PartialBreakdown, extremes, summed
from .planes import read_trace
from .program import Program, read_program
from .timeline import MAX_DEVICES, Activity, Rank, Swept, device_spans, sweep
from .trace import Interval, ProgramTrace, Trace

PICOSECONDS = 1e12
OTHER_PROGRAMS, INPUT, HOST, IDLE = "other programs", "input", "host", "idle"
MODULE = re.compile(r"\s*HloModule ([\w.\-]+)")
"""The beginning of a text, with its name."""
MAX_UNKNOWN = 20
"""Operations missing in the text that a breakdown names."""


@dataclass(frozen=True)
class Place:
    """The place of a traced device in the mesh."""

    position: int
    """Its position in the mesh, in row-major order of the axes."""
    id: int
    """Its id."""


def read_recording(
    path: Path, mesh: Mapping[str, int], text: str = "", places: Mapping[int, Place] | None = None
) -> "Recording":
    """Reads a trace and joins it with its program. Raises UserError if it cannot be read or has no whole step.

    The program is the one of the `text`, or else the one that took most time. `mesh`: axis to size; empty if unknown.
    `text`: the program's HLO text; if empty, the trace's own. `places`: each device of the trace; by default their
    numbers.
    """
    trace = read_trace(path)
    name = MODULE.match(text)
    own = [program for program in trace.programs.values() if name and program.name == name[1]]
    traced = max(own or trace.programs.values(), key=lambda program: program.busy, default=None)
    if traced is None or not traced.devices:
        raise UserError(
            f"{path}: no operation of a device in it: trace steps while they run, with the device tracer on"
        )
    program = read_program(traced, text, mesh)
    known = {device: Place(device, device) for device in traced.devices} | dict(places or {})
    return Recording(trace, traced, program, known)


class Recording:
    """The whole steps of one program in one trace."""

    def __init__(self, trace: Trace, traced: ProgramTrace, program: Program, places: Mapping[int, Place]) -> None:
        self.program = program
        self.traced = traced
        self.trace = trace
        self._places = places
        operations = program.operations
        self._devices = {
            device: [each for each in sorted(found) if (op := operations.get(each.name)) and not op.is_container]
            for device, found in sorted(traced.devices.items())
        }
        if not any(self._devices.values()):
            raise UserError(f"no operation of the trace is in the text of {traced.name}: it is of another program")
        self._inputs = union(trace.inputs)
        self._begins = _begins(self._devices)
        """The first moment of each run on any device, in order."""
        numbers = _step_numbers(trace, self._begins)
        runs = _whole_runs(self._devices, self._begins)
        self._steps = {run: numbers.get(run, at) for at, run in enumerate(runs)}
        """Each run to the number of its step."""
        self.has_numbers = bool(numbers)
        """Whether the host has annotated the steps: their numbers are then the same in all processes."""
        self.keep(self.steps)

    @property
    def steps(self) -> list[int]:
        return list(self._steps.values())

    def keep(self, steps: Sequence[int]) -> None:
        """Leaves out all other steps. `steps` follow each other; at least one of them is there."""
        self._steps = {run: step for run, step in self._steps.items() if step in steps}
        self.window: Span = self._window_of(list(self._steps))
        """Picoseconds from the start of the first step to the end of the last operation."""
        self.arrivals = Arrivals(self.program)
        for device, found in self._devices.items():
            kept = (each for each in found if each.run in self._steps)
            self.arrivals.add(self._places[device].position, kept, self._steps)

    @property
    def positions(self) -> list[int]:
        return [self._places[device].position for device in self._devices]

    @property
    def shown_step(self) -> int:
        """The number of the step in the timeline: the one in the middle."""
        return self.steps[len(self.steps) // 2]

    @property
    def shown_window(self) -> Span:
        """Begin and end of the shown step, in picoseconds."""
        return self._window_of([run for run in self._steps if self._steps[run] == self.shown_step])

    def _window_of(self, runs: Sequence[int]) -> Span:
        """The time from the start of the first run's step to the end of the last operation."""
        chosen = set(runs)
        end = max(each.end for found in self._devices.values() for each in found if each.run in chosen)
        return self._start(self._begins[runs[0]]), end

    def _start(self, begin: int) -> int:
        """The start of the step whose first operation begins at `begin`: the host's annotation, or the end of the step
        before if that is later; without annotations, `begin`.
        """
        annotated = max((step.begin for step in self.trace.steps if step.begin <= begin), default=begin)
        ends = (each.end for found in self._devices.values() for each in found if each.end <= begin)
        return max(annotated, max(ends, default=annotated))

    def breakdown(self, window: Span, shown: Span) -> PartialBreakdown:
        """Returns the time of each device in a window, divided among the parts of the step.

        `shown`: the window of the step that the timeline shows.
        """
        scale = 1 / PICOSECONDS / len(self._steps)
        activities = {device: list(self._activities(device)) for device in self._devices}
        swept = {device: sweep(found, window) for device, found in activities.items()}
        total = summed(swept.values(), scale)
        waits = self.arrivals.waits_for(set(self.positions))
        for device, found in swept.items():
            place = self._places[device]
            times, waited = waits.get(place.position, (0, 0))
            picoseconds = self._gaps(device, found) | parts_of(self.program, found)
            parts = {name: time * scale for name, time in picoseconds.items()}
            own = DeviceBreakdown(place.position, place.id, parts, times / len(self._steps), waited * scale)
            total.devices.append(own)
        chosen = extremes(total.devices, MAX_DEVICES)
        total.shown = [
            device_spans(place.position, place.id, activities[device], shown)
            for device in self._devices
            if (place := self._places[device]).position in chosen
        ]
        total.counts = {name: count / len(self._steps) for name, count in self._counts().items()}
        total.skipped = [*self.trace.skipped, *(f"operation {name}" for name in self._unknown[:MAX_UNKNOWN])]
        return total

    def _counts(self) -> Counter[str]:
        operations = self.program.operations
        return Counter(
            each.name
            for found in self._devices.values()
            for each in found
            if each.run in self._steps and each.is_execution and operations[each.name].is_begin and not each.in_flight
        )

    @property
    def _unknown(self) -> list[str]:
        found = {each.name for intervals in self.traced.devices.values() for each in intervals}
        return sorted(found - {*self.program.operations})

    def _activities(self, device: int) -> Iterable[Activity]:
        operations, position = self.program.operations, self._places[device].position
        begun: dict[str, int] = {}
        for each in self._devices[device]:
            operation = operations[each.name]
            if each.run not in self._steps:
                continue
            if not operation.collective:
                yield Activity(each.begin, each.end, Rank.FLIGHT if each.in_flight else Rank.WORK, each.name)
            elif each.in_flight:
                yield Activity(each.begin, each.end, Rank.EXPOSED, operation.collective)
            elif operation.is_begin:
                met = begun[each.name] = self.arrivals.met(position, each)
                yield Activity(each.begin, met, Rank.WAITING, operation.collective)
                yield Activity(met, each.end, Rank.EXPOSED, operation.collective)
            else:  # it was in progress since it began
                begin = begun.get(operation.collective, each.begin)
                yield Activity(begin, each.end, Rank.EXPOSED, operation.collective)
        for begin, end in self._others(device):
            yield Activity(begin, end, Rank.WORK, OTHER_PROGRAMS)

    def _others(self, device: int) -> Iterable[Span]:
        """The device's work for other programs, and work without a name."""
        for program in self.trace.programs.values():
            if program is not self.traced:
                yield from ((each.begin, each.end) for each in program.devices.get(device, ()) if not each.in_flight)
        yield from self.trace.unnamed.get(device, ())

    def _gaps(self, device: int, swept: Swept) -> dict[str, float]:
        """Divides the time in which the device did nothing: `idle` within a step, else `input` or `host`."""
        runs = self._extents(device)
        begins = [begin for begin, _ in runs]
        found: dict[str, float] = defaultdict(float)
        for begin, end in swept.gaps:
            at = bisect_right(begins, begin) - 1
            if at >= 0 and end <= runs[at][1]:
                found[IDLE] += end - begin
                continue
            waited = sum(max(0, min(end, last) - max(begin, first)) for first, last in self._inputs)
            found[INPUT] += waited
            found[HOST] += end - begin - waited
        return found

    def _extents(self, device: int) -> list[Span]:
        """Begin and end of each run on a device."""
        spans: dict[int, Span] = {}
        for each in self._devices[device]:
            begin, end = spans.get(each.run, (each.begin, each.end))
            spans[each.run] = min(begin, each.begin), max(end, each.end)
        return sorted(spans.values())


def parts_of(program: Program, swept: Swept) -> dict[str, float]:
    """Returns the picoseconds of a device's activities by part of the step."""
    parts = defaultdict[str, float](float)
    for (name, rank), time in swept.counted.items():
        part = name if name == OTHER_PROGRAMS else program.part_of(name, rank == Rank.WAITING)
        parts[part] += time
    return parts


def _whole_runs(devices: Mapping[int, Sequence[Interval]], runs: Iterable[int]) -> list[int]:
    """The longest sequence of whole runs, in order. Raises UserError if there is none.

    A run is whole if every device ran as many operations as it mostly does: those at the ends of a trace may be cut.
    """
    counts = {device: Counter(each.run for each in found) for device, found in devices.items()}
    usual = {device: Counter(sizes.values()).most_common(1)[0][0] for device, sizes in counts.items()}
    best: list[int] = []
    current: list[int] = []
    for run in runs:
        is_whole = all(counts[device][run] == usual[device] for device in devices)
        current = [*current, run] if is_whole else []
        best = current if len(current) > len(best) else best
    if not best:
        raise UserError("no step of the trace is whole on every device: trace more steps")
    return best


def _step_numbers(trace: Trace, runs: Collection[int]) -> Mapping[int, int]:
    """Each run to the number of its step by the host's annotations; empty if there are more or fewer of them."""
    steps = sorted(trace.steps)
    return dict(zip(runs, (step.number for step in steps), strict=True)) if len(runs) == len(steps) else {}


def _begins(devices: Mapping[int, Sequence[Interval]]) -> dict[int, int]:
    begins: dict[int, int] = {}
    for found in devices.values():
        for each in found:
            begins[each.run] = min(each.begin, begins.get(each.run, each.begin))
    return dict(sorted(begins.items(), key=lambda each: each[1]))
