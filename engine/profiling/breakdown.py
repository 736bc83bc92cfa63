"""The breakdown of a step, which says where its time went: from the sums over all devices and the program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ..base.spans import Span
from ..base.untrusted import read_text
from ..base.user_error import UserError
from ..hlo.module import MAX_TEXT_BYTES
from ..spec.topology import Chip, chip_of
from ..wire.step_breakdown import CollectiveTime, DeviceTime, OperationTime, PartTime, StepBreakdown, Timeline, WaitTime
from .partial_breakdown import PartialBreakdown, extremes, merged
from .program import COPIES, FUSIONS, PRODUCTS, Operation, Program
from .recording import HOST, IDLE, INPUT, OTHER_PROGRAMS, PICOSECONDS, Recording, read_recording
from .timeline import MAX_DEVICES, encoded

NANOSECONDS = 9
"""Digits of an operation's seconds: an event has hundreds of them."""
RATE_DIGITS = 4
"""Digits of a rate."""
MAX_OPERATIONS = 500
"""Operations in a breakdown: the ones with most time."""


def profile(trace: str, mesh: dict[str, int], hlo: str = "") -> StepBreakdown:
    """Breaks down the steps in a trace. Raises UserError if it cannot be read.

    `trace`: an `.xplane.pb`, or a directory that contains some, of which the newest is read. `hlo`: a file with the
    program's text, or empty.
    """
    path = Path(trace)
    if path.is_dir():
        found = list(path.rglob("*.xplane.pb"))
        if not found:
            raise UserError(f"{path}: no .xplane.pb below it: give a trace that the profiler has written")
        path = max(found, key=lambda file: file.stat().st_mtime)
    return read_breakdown(path, mesh, read_text(hlo, MAX_TEXT_BYTES, f"--hlo {hlo}") if hlo else "")


def read_breakdown(path: Path, mesh: Mapping[str, int], text: str = "") -> StepBreakdown:
    """Reads a trace and breaks down its steps. Raises UserError if it cannot be read or has no whole step.

    `mesh`, `text`: as in `read_recording`. The peaks are the published ones of the chip that the trace names.
    """
    recording = read_recording(path, mesh, text)
    window, shown = recording.window, recording.shown_window
    return breakdown_of(recording, [recording.breakdown(window, shown)], window, shown, chip_of(recording.trace.kind))


def breakdown_of(
    recording: Recording, found: Sequence[PartialBreakdown], window: Span, shown: Span, chip: Chip | None
) -> StepBreakdown:
    """Returns the breakdown of the steps of a recording.

    `found`: the breakdown of each process. `window`: the time that was divided. `shown`: the time of the step in the
    timeline.
    """
    steps = len(recording.steps)
    builder = BreakdownBuilder(recording.program, merged(found), _seconds(window) / steps, chip)
    return replace(builder.breakdown(steps, recording.shown_step, _seconds(shown)), processes=len(found))


def _seconds(span: Span) -> float:
    return (span[1] - span[0]) / PICOSECONDS


@dataclass(frozen=True)
class BreakdownBuilder:
    """Makes the breakdown from sums over devices."""

    program: Program
    total: PartialBreakdown
    step: float
    """Seconds per step."""
    chip: Chip | None
    """Of the devices; None if unknown."""

    def __post_init__(self) -> None:
        if not self.step:
            raise UserError(f"the operations of {self.program.module.name} take no time: there is nothing to divide")

    def breakdown(self, steps: int, shown_step: int, shown_seconds: float) -> StepBreakdown:
        """Returns the breakdown. `steps`: how many were measured. The timeline is of one of them, `shown_step`, which
        took `shown_seconds`."""
        devices = self.total.devices
        names = self._part_names()
        mean = {name: sum(device.parts.get(name, 0.0) for device in devices) / len(devices) for name in names}
        operations, left_out = self._operations()
        chosen, listed = extremes(devices, MAX_DEVICES), [each.name for each in operations]
        return StepBreakdown(
            program=self.program.module.name,
            mesh=dict(self.program.mesh),
            steps=steps,
            step_seconds=self.step,
            clock_seconds=None,
            parts=[PartTime(name=name, seconds=mean[name], share=mean[name] / self.step) for name in names],
            devices=[
                DeviceTime(device=device.id, seconds=[device.parts.get(name, 0.0) for name in names])
                for device in devices
            ],
            collectives=self._collectives(),
            operations=operations,
            operations_left_out=left_out,
            waits=self._waits(),
            skipped=self.total.skipped,
            timeline=Timeline(
                step=shown_step,
                seconds=shown_seconds,
                devices=[encoded(each, listed) for each in self.total.shown if each.position in chosen],
            ),
        )

    def _part_names(self) -> list[str]:
        """The parts in order: work, collectives by name, then the time without operations."""
        found = {name for device in self.total.devices for name in device.parts}
        fixed = [PRODUCTS, FUSIONS, COPIES]
        ends = [OTHER_PROGRAMS, INPUT, HOST, IDLE]
        collectives = sorted(found - {*fixed, *ends})
        return [*fixed, *collectives, *(name for name in ends if name != OTHER_PROGRAMS or name in found)]

    def _collectives(self) -> list[CollectiveTime]:
        found: list[CollectiveTime] = []
        for name, info in self.program.collectives.items():
            total, sent = self.total, info.bytes_sent
            rate = self.chip and self.chip.rate_of(info.network)
            waiting, exposed, hidden = (total.mean(of, name) for of in (total.waiting, total.exposed, total.hidden))
            found.append(
                CollectiveTime(
                    name=name,
                    kind=info.kind,
                    axes=info.axes,
                    count=total.mean(total.counts, name),
                    seconds=waiting + exposed + hidden,
                    waiting_seconds=waiting,
                    exposed_seconds=exposed,
                    hidden_seconds=hidden,
                    predicted_seconds=sent / rate if rate and sent is not None else None,
                    bytes=info.bytes_per_device,
                    source=info.source,
                )
            )
        return sorted(found, key=lambda each: -each.seconds)

    def _operations(self) -> tuple[list[OperationTime], int]:
        """Returns the operations with most time, and how many others there are."""
        known, times = self.program.operations, self.total.operations
        timed = sorted((name for name in times if name in known), key=lambda name: -times[name])
        listed = [self._operation(known[name]) for name in timed[:MAX_OPERATIONS]]
        return listed, len(timed) - len(listed)

    def _operation(self, operation: Operation) -> OperationTime:
        """Returns an operation with its rates, which follow from its FLOPs and bytes."""
        total, chip, name = self.total, self.chip, operation.name
        count, seconds = total.mean(total.counts, name), round(total.mean(total.operations, name), NANOSECONDS)
        if collective := self.program.collectives.get(name):
            flops, moved = None, collective.bytes_sent
            working = total.mean(total.exposed, name) + total.mean(total.hidden, name)
            bandwidth = chip and chip.rate_of(collective.network)
        else:
            flops, moved = (None if value is None else count * value for value in self.program.work(name))
            working, bandwidth = seconds, chip and chip.memory_rate
        moved = None if moved is None else round(moved)
        times = _over(flops, chip and chip.flops), _over(moved, bandwidth)
        return OperationTime(
            name=name,
            part=operation.part,
            count=count,
            seconds=seconds,
            module=operation.module,
            source=operation.source,
            flops=flops,
            bytes=moved,
            flops_per_second=_over(flops, working),
            bytes_per_second=_over(moved, working),
            flops_share=_over(times[0], working),
            bandwidth_share=_over(times[1], working),
            roofline_seconds=max((time for time in times if time is not None), default=None),
        )

    def _waits(self) -> list[WaitTime]:
        devices = self.total.devices
        others = max(1, len(devices) - 1)
        found = [
            WaitTime(device=device.id, count=device.times_waited_for, seconds=device.waited_for / others)
            for device in devices
            if device.times_waited_for
        ]
        return sorted(found, key=lambda wait: -wait.seconds)


def _over(amount: float | None, by: float | None) -> float | None:
    return None if amount is None or not by else float(f"{amount / by:.{RATE_DIGITS}g}")
