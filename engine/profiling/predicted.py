"""The breakdown of a step that never ran, by the order of a TPU program and the cycles that its compiler estimates."""

import math
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from ..base import formatting
from ..base.untrusted import read_text
from ..base.user_error import UserError
from ..hlo.execution_counts import is_walkable
from ..hlo.module import APPLIED, BODY, MAX_TEXT_BYTES, Computation, Instruction, Module, parse
from ..hlo.work import NO_WORK, cycles_of
from ..spec.topology import Topology, load_topology, wiring
from ..wire.collective import Network
from ..wire.step_breakdown import StepBreakdown
from .breakdown import BreakdownBuilder
from .partial_breakdown import DeviceBreakdown, summed
from .program import Operation, Program
from .recording import IDLE, PICOSECONDS, parts_of
from .timeline import Activity, Rank, device_spans, sweep

MAX_VISITS = 3_000_000
"""Instructions of a step, those of a loop once for each trip: with more, no time is predicted."""
MAX_UNKNOWN = 20
"""Operations without an estimate that a breakdown names."""
ESTIMATED = ("fusion", "custom-call")
"""Opcodes that take time and mostly have an estimate: gathers, scatters and kernels have none."""
NO_OPERATION = 'custom_call_target="AllocateBuffer"'


def predict(hlo: str, mesh: dict[str, int], topology: str) -> StepBreakdown:
    """Breaks down a program that never ran. `hlo`: a file with its text, compiled for the slice. Raises UserError."""
    target = load_topology(topology)
    try:
        return predicted_breakdown(parse(read_text(hlo, MAX_TEXT_BYTES, hlo)), mesh, target)
    except ValueError as error:
        raise UserError(f"{hlo}: {error}") from error


def predicted_breakdown(module: Module, mesh: Mapping[str, int], topology: Topology) -> StepBreakdown:
    """Returns where the time of a step would go, on each device of a slice alike. `mesh`: axis to size.

    Operations follow each other in the program's order, each as long as the compiler estimates, at the chip's clock. A
    collective takes its bytes by the rate of its links; one that is asynchronous passes behind what follows until the
    program waits for it. Nothing waits for other devices, copies in flight and scalars take no time, and other
    operations without an estimate are named in `skipped`.

    Raises UserError if the text has no estimates, or is of another number of devices; ValueError if it cannot be read.
    """
    if not any(cycles_of(each) for _, each in module.instructions()):
        raise UserError(f"{module.name} has no estimated cycles: give the text of a program that the TPU compiler made")
    devices = module.partitions * topology.slices
    if devices != topology.devices:
        own = f"{module.name} is for {formatting.counted(devices, 'device')}"
        raise UserError(f"{own}, but {topology.title} has {topology.devices}")
    if math.prod(mesh.values()) != devices:
        has = formatting.counted(math.prod(mesh.values()), "device")
        given = f"--mesh {formatting.axes(dict(mesh))} has {has}" if mesh else "no --mesh"
        raise UserError(f"{given}, but {module.name} is for {devices}: give the mesh it was compiled for")
    if not is_walkable(module):
        raise UserError(f"{module.name} has computations that call each other too often, or too deeply")
    schedule = Schedule(Program(module, mesh, devices, set()), topology)
    schedule.run(module.computations[module.entry])
    return schedule.breakdown()


class Schedule:
    """The activities of one device in a step, in picoseconds."""

    def __init__(self, program: Program, topology: Topology) -> None:
        self._program, self._topology = program, topology
        self._awaited = {each.collective for each in program.operations.values() if not each.is_begin}
        """Collectives whose end is an operation of its own: others may run in between."""
        self._now = 0
        self._free: dict[Network | None, int] = {}
        """The time from which each network is free: its collectives follow each other."""
        self._begun: dict[str, tuple[int, int]] = {}
        """Collectives in flight: their begin and end."""
        self._activities: list[Activity] = []
        self._unknown: dict[str, None] = {}
        self._visits = 0

    def run(self, where: Computation) -> None:
        """Runs a computation and all that it calls. Raises UserError if that is too much."""
        self._visits += 1 + len(where.instructions)
        if self._visits > MAX_VISITS:
            raise UserError(f"{self._program.module.name} runs more than {MAX_VISITS:,} instructions a step")
        for each in where.instructions.values():
            if each.opcode in NO_WORK:
                continue
            if each.opcode == "while":
                self._loop(where, each)
            elif each.opcode == "call":
                self._enter(each, APPLIED)
            elif each.opcode == "conditional":
                self._unknown[each.name] = None
            elif operation := self._program.operations.get(each.name):
                self._operate(each, operation)

    def _loop(self, where: Computation, each: Instruction) -> None:
        runs = self._program.runs
        times, of = runs.get(each.attribute(BODY) or ""), runs[where.name]
        if not times or not of:
            self._unknown[each.name] = None
            return
        for _ in range(times // of):
            self._enter(each, BODY)

    def _enter(self, each: Instruction, role: str) -> None:
        if found := self._program.module.computations.get(each.attribute(role) or ""):
            self.run(found)

    def _operate(self, each: Instruction, operation: Operation) -> None:
        if operation.collective:
            self._communicate(operation)
            return
        cycles = cycles_of(each)
        if cycles:
            end = self._now + round(cycles / self._topology.chip.clock_rate * PICOSECONDS)
            self._activities.append(Activity(self._now, end, Rank.WORK, each.name))
            self._now = end
        elif each.opcode in ESTIMATED and NO_OPERATION not in each.rest:
            self._unknown[each.name] = None

    def _communicate(self, operation: Operation) -> None:
        name = operation.collective
        if operation.is_begin:
            network = self._program.collectives[name].network
            begin = max(self._now, self._free.get(network, 0))
            self._free[network] = begin + self._duration(name)
            self._begun[name] = (begin, self._free[network])
            if name in self._awaited:
                return
        began, end = self._begun.pop(name, (self._now, self._now))
        self._now = max(self._now, end)
        self._activities.append(Activity(began, end, Rank.EXPOSED, name))

    def _duration(self, name: str) -> int:
        """Picoseconds of one execution of a collective; 0 if its bytes are not known."""
        info = self._program.collectives[name]
        if not info.bytes_sent or not info.count:
            self._unknown[name] = None
            return 0
        whole = math.prod(self._program.mesh[axis] for axis in info.axes)
        is_part = 1 < info.group_size < whole and info.network != "dcn" and info.kind != "collective-permute"
        group = self._program.partners(name, 0) if is_part else ()
        wired = wiring(self._topology, self._program.mesh, info.axes, group)
        rate = (wired.dcn_rate if info.network == "dcn" else wired.rate) or math.inf
        return round(info.bytes_sent / info.count / rate * PICOSECONDS)

    def breakdown(self) -> StepBreakdown:
        """Returns the breakdown of all that has run."""
        window = (0, self._now)
        swept = sweep(self._activities, window)
        total = summed([swept], 1 / PICOSECONDS)
        picoseconds = {IDLE: sum(end - begin for begin, end in swept.gaps)} | parts_of(self._program, swept)
        parts = {name: time / PICOSECONDS for name, time in picoseconds.items()}
        total.devices.append(DeviceBreakdown(0, 0, parts))
        total.counts.update(Counter(each.key for each in self._activities))
        more = len(self._unknown) - MAX_UNKNOWN
        total.skipped = [*self._unknown][:MAX_UNKNOWN] + [formatting.counted(more, "more operation")] * (more > 0)
        total.shown = [device_spans(0, 0, self._activities, window)]
        builder = BreakdownBuilder(self._program, total, self._now / PICOSECONDS, self._topology.chip)
        return replace(builder.breakdown(1, 1, builder.step), predicted_for=self._topology.title)
