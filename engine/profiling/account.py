"""The account of a step: a trace joined with its program, and the time of each device divided among the parts."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..analysis.traffic import sent
from ..base.invalid import Invalid
from ..wire.account import Account, CollectiveTime, DeviceTime, OperationTime, PartTime, WaitTime
from .arrivals import Arrivals
from .program import COPIES, FUSIONS, PRODUCTS, Operation, Program, read_program
from .reader import read_trace
from .steps import Steps, whole_steps
from .sweep import Activity, Rank, Swept, sweep
from .trace import ProgramTrace, Span, Trace, union

MAX_OPERATIONS = 500
"""Operations in an account, those with most time first."""
PICOSECONDS = 1e12
OTHER_PROGRAMS, INPUT, HOST, IDLE = "other programs", "input", "host", "idle"


@dataclass(frozen=True)
class Place:
    """What a device of the trace is in the mesh."""

    position: int
    """Its position in the mesh, in row-major order of the axes."""
    id: int
    """Its id."""


@dataclass
class Sums:
    """Seconds per step, summed over devices."""

    parts: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """By part, for each device."""
    operations: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    hidden: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    exposed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waiting: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter[str])


def read_account(
    path: Path,
    mesh: Mapping[str, int],
    text: str = "",
    places: Mapping[int, Place] | None = None,
    clock_seconds: float | None = None,
    link_rate: float | None = None,
) -> Account:
    """Reads a trace and accounts for its steps. Raises Invalid if it cannot be read or has no whole step.

    `mesh`: axis to size; empty if unknown. `text`: the program's HLO text; if empty, the trace's own. `places`: each
    device of the trace; by default their numbers. `link_rate`: bytes per second of a ring of links, both directions.
    """
    trace = read_trace(path)
    traced = max(trace.programs.values(), key=lambda program: program.busy, default=None)
    if traced is None or not traced.devices:
        raise Invalid(f"{path}: no operation of a device in it: trace steps while they run, with the device tracer on")
    program = read_program(traced, text, mesh)
    known = {device: Place(device, device) for device in traced.devices} | dict(places or {})
    return Accountant(trace, traced, program, known).account(clock_seconds, link_rate)


class Accountant:
    """Accounts for the steps of one program in one trace."""

    def __init__(self, trace: Trace, traced: ProgramTrace, program: Program, places: Mapping[int, Place]) -> None:
        self._trace, self._traced, self._program = trace, traced, program
        self._places = places
        self._unknown = sorted(
            {each.name for found in traced.devices.values() for each in found} - {*program.operations}
        )
        operations = program.operations
        self._devices = {
            device: [each for each in sorted(found) if (op := operations.get(each.name)) and not op.is_container]
            for device, found in sorted(traced.devices.items())
        }
        if not any(self._devices.values()):
            raise Invalid(f"no operation of the trace is in the text of {traced.name}: it is of another program")
        self._steps: Steps = whole_steps(trace, self._devices)
        runs = set(self._steps.runs)
        self._arrivals = Arrivals(program, {device: places[device].position for device in self._devices})
        for device, found in self._devices.items():
            self._arrivals.add(device, (each for each in found if each.run in runs))
        self._inputs = union(trace.inputs)
        self._sums = Sums()

    def account(self, clock_seconds: float | None, link_rate: float | None) -> Account:
        """Returns the account."""
        for device in self._devices:
            self._add(device)
        begin, end = self._steps.window
        step = (end - begin) / PICOSECONDS / len(self._steps.runs)
        names = self._part_names()
        mean = {name: sum(parts.get(name, 0.0) for parts in self._sums.parts) / len(self._devices) for name in names}
        operations = self._operations()
        return Account(
            program=self._traced.name,
            mesh=dict(self._program.mesh),
            steps=len(self._steps.runs),
            step_seconds=step,
            clock_seconds=clock_seconds,
            parts=[PartTime(name=name, seconds=mean[name], share=mean[name] / step) for name in names],
            devices=[
                DeviceTime(device=self._places[device].id, seconds=[parts.get(name, 0.0) for name in names])
                for device, parts in zip(self._devices, self._sums.parts, strict=True)
            ],
            collectives=self._collectives(link_rate),
            operations=operations[:MAX_OPERATIONS],
            operations_left_out=max(0, len(operations) - MAX_OPERATIONS),
            waits=self._waits(),
            skipped=[*self._trace.skipped, *(f"operation {name}" for name in self._unknown[:20])],
        )

    def _add(self, device: int) -> None:
        """Adds the time of one device."""
        swept = sweep(self._activities(device), self._steps.window)
        scale = 1 / PICOSECONDS / len(self._steps.runs)
        parts: dict[str, float] = defaultdict(float)
        for (name, rank), time in swept.counted.items():
            parts[self._part(name, rank)] += time * scale
            if name in self._program.collectives:
                sums = self._sums.waiting if rank == Rank.WAITING else self._sums.exposed
                sums[name] += time * scale
            self._sums.operations[name] += time * scale
        for name, time in swept.hidden.items():
            self._sums.hidden[name] += time * scale
        for name, time in self._gaps(device, swept).items():
            parts[name] += time * scale
        self._sums.parts.append(parts)

    def _activities(self, device: int) -> Iterable[Activity]:
        operations, runs = self._program.operations, set(self._steps.runs)
        begun: dict[str, int] = {}
        for each in self._devices[device]:
            operation = operations[each.name]
            if each.run not in runs:
                continue
            if operation.is_begin and not each.in_flight:
                self._sums.counts[each.name] += 1
            if not operation.collective:
                yield Activity(each.begin, each.end, Rank.FLIGHT if each.in_flight else Rank.WORK, each.name)
            elif each.in_flight:
                yield Activity(each.begin, each.end, Rank.EXPOSED, operation.collective)
            elif operation.is_begin:
                met = begun[each.name] = self._arrivals.met(device, each)
                yield Activity(each.begin, met, Rank.WAITING, operation.collective)
                yield Activity(met, each.end, Rank.EXPOSED, operation.collective)
            else:  # it was in progress since it began
                begin = begun.get(operation.collective, each.begin)
                yield Activity(begin, each.end, Rank.EXPOSED, operation.collective)
        for begin, end in self._others(device):
            yield Activity(begin, end, Rank.WORK, OTHER_PROGRAMS)

    def _others(self, device: int) -> Iterable[Span]:
        """What the device did for other programs, and without a name."""
        for program in self._trace.programs.values():
            if program is not self._traced:
                yield from ((each.begin, each.end) for each in program.devices.get(device, ()) if not each.in_flight)
        yield from self._trace.unnamed.get(device, ())

    def _part(self, name: str, rank: Rank) -> str:
        if name == OTHER_PROGRAMS:
            return name
        part = self._program.operations[name].part
        if name not in self._program.collectives:
            return part
        return f"{part}: {'waiting' if rank == Rank.WAITING else 'exposed'}"

    def _gaps(self, device: int, swept: Swept) -> Mapping[str, float]:
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
        """When each run began and ended on a device."""
        spans: dict[int, Span] = {}
        for each in self._devices[device]:
            begin, end = spans.get(each.run, (each.begin, each.end))
            spans[each.run] = min(begin, each.begin), max(end, each.end)
        return sorted(spans.values())

    def _part_names(self) -> list[str]:
        """The parts in their order: work, collectives by time, then what is no operation."""
        found = {name for parts in self._sums.parts for name in parts}
        fixed = [PRODUCTS, FUSIONS, COPIES]
        ends = [OTHER_PROGRAMS, INPUT, HOST, IDLE]
        collectives = sorted(found - {*fixed, *ends})
        return [*fixed, *collectives, *(name for name in ends if name != OTHER_PROGRAMS or name in found)]

    def _per_device(self, times: Mapping[str, float], name: str) -> float:
        return times.get(name, 0.0) / len(self._devices)

    def _count(self, name: str) -> float:
        return self._sums.counts[name] / len(self._devices) / len(self._steps.runs)

    def _collectives(self, link_rate: float | None) -> list[CollectiveTime]:
        found: list[CollectiveTime] = []
        for name, info in self._program.collectives.items():
            sums = self._sums
            waiting, exposed, hidden = (self._per_device(of, name) for of in (sums.waiting, sums.exposed, sums.hidden))
            moved = None if info.bytes_per_device is None else sent(info.kind, info.bytes_per_device, info.group_size)
            found.append(
                CollectiveTime(
                    name=name,
                    kind=info.kind,
                    axes=info.axes,
                    count=self._count(name),
                    seconds=waiting + exposed + hidden,
                    waiting_seconds=waiting,
                    exposed_seconds=exposed,
                    hidden_seconds=hidden,
                    predicted_seconds=moved / link_rate if link_rate and moved is not None else None,
                    bytes=info.bytes_per_device,
                    source=info.source,
                )
            )
        return sorted(found, key=lambda each: -each.seconds)

    def _operations(self) -> list[OperationTime]:
        known = self._program.operations
        timed = sorted(self._sums.operations.items(), key=lambda each: -each[1])
        return [self._operation(known[name], seconds) for name, seconds in timed if name in known]

    def _operation(self, operation: Operation, seconds: float) -> OperationTime:
        return OperationTime(
            name=operation.name,
            part=operation.part,
            count=self._count(operation.name),
            seconds=seconds / len(self._devices),
            module=operation.module,
            source=operation.source,
        )

    def _waits(self) -> list[WaitTime]:
        others, steps = max(1, len(self._devices) - 1), len(self._steps.runs)
        found = [
            WaitTime(
                device=self._places[device].id,
                count=self._arrivals.times[device] / steps,
                seconds=self._arrivals.waited_for[device] / PICOSECONDS / steps / others,
            )
            for device in self._devices
            if self._arrivals.times[device]
        ]
        return sorted(found, key=lambda wait: -wait.seconds)
