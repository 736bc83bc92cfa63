"""Compilations in the background of training: for requested, scheduled and likely switches, and for inspections."""

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from ..base.advice import error_line, problems_in
from ..program.compile_queue import Urgency
from ..program.compiler import Compiler, Ready
from ..program.program import Program
from ..spec.config import ScheduledSwitch
from ..wire.events import AheadEnded, Event, Phase, PresetCompiling, PresetInspected, ProgramsKept, SwitchCancelled


class Dropped(Exception):
    """Ends a compilation between two phases because its result is no longer needed."""


class Pending:
    """A compilation in the background, and the phases of it that have begun."""

    def __init__(
        self, preset: str, wake: Callable[[], None], submit: Callable[[Callable[[Phase], None]], Future[Ready]]
    ) -> None:
        self.preset = preset
        self.is_reported = False
        """Whether its end was reported."""
        self._wake = wake
        self._is_wanted = True
        self._begun: queue.SimpleQueue[Phase] = queue.SimpleQueue()
        self.ready = submit(self._begin)

    def _begin(self, phase: Phase) -> None:
        """Notes the start of a phase, in the compiler's thread. Raises Dropped if the result is no longer needed."""
        if not self._is_wanted:
            raise Dropped
        self._begun.put(phase)
        self._wake()

    def take_phases(self) -> Iterator[Phase]:
        while not self._begun.empty():
            yield self._begun.get()

    def drop(self) -> None:
        """Cancels it: if it is still queued it never starts; if it runs, it ends before its next phase."""
        self._is_wanted = False
        self.ready.cancel()


class BackgroundCompiles:
    """Prepares at most one requested switch, the next scheduled one and one likely one at a time. Only the training
    thread uses it."""

    def __init__(
        self, compiler: Compiler, switches: Sequence[ScheduledSwitch], publish: Callable[[Event], None]
    ) -> None:
        self._compiler, self._publish = compiler, publish
        self._scheduled = sorted(switches, key=lambda switch: switch.step)
        self._requested: Pending | None = None
        self._next: Pending | None = None
        self._likely_preset: str | None = None
        """The preset that is likely to be next, until its compilation is submitted."""
        self._likely: Pending | None = None
        self._described: set[str] = set()
        self._inspections: dict[str, Future[PresetInspected] | None] = {}
        """Inspections by preset; None once published."""
        self._first: Pending | None = None
        self._kept: list[str] = []

    def first(self, preset: str) -> Pending:
        """Compiles the run's first program."""
        self._publish(PresetCompiling(preset=preset))
        self._first = Pending(preset, self._compiler.wake, partial(self._compiler.first, preset))
        return self._first

    def request(self, preset: str, active: Program) -> None:
        """Requests a switch in place of a pending one. The active preset needs no switch."""
        if self._requested is not None and self._requested.preset == preset:
            return
        self.cancel(preset)
        if preset != active.name:
            self._publish(PresetCompiling(preset=preset))
            self._requested = self._submit(Urgency.REQUESTED, preset, active)

    def cancel(self, target: str | None = None) -> None:
        """Drops the requested switch, and the likely one unless it is to `target`."""
        if self._requested is not None:
            self._publish(SwitchCancelled(to_preset=self._requested.preset))
            self._requested.drop()
            self._requested = None
        if self._likely is not None and self._likely.preset != target:
            self._likely.drop()
            self._end_likely("a switch to another preset was requested")

    def expect(self, preset: str) -> None:
        """Marks this preset as the only likely target of the next switch."""
        self._likely_preset = preset

    def compile_likely(self, active: Program, has_core_to_spare: Callable[[], bool]) -> None:
        """Compiles the likely preset if no other switch is being compiled and a core is free."""
        is_busy = any(pending is not None and not pending.ready.done() for pending in (self._requested, self._next))
        if self._likely_preset is None or self._likely or is_busy:
            return
        if not has_core_to_spare():
            return
        preset, self._likely_preset = self._likely_preset, None
        if preset not in self._described or preset not in self._compiler.kept:
            self._likely = self._submit(Urgency.LIKELY, preset, active)
            self._report_phase(preset, "wait")

    def inspect(self, preset: str) -> None:
        """Starts to inspect a preset, once per preset and run; `report` publishes the result."""
        if preset not in self._inspections:
            self._inspections[preset] = self._compiler.inspect(preset)

    def compile_scheduled(self, active: Program) -> None:
        if self._scheduled and self._next is None:
            preset = self._scheduled[0].preset
            self._next = self._submit(Urgency.SCHEDULED, preset, active)
            self._report_phase(preset, "wait")

    def take_scheduled(self, step: int) -> Pending | None:
        """Returns the switch that is scheduled after `step`, ready or not, else None; it cancels a requested switch."""
        if not self._scheduled or self._scheduled[0].step != step:
            return None
        self.cancel()
        self._scheduled.pop(0)
        scheduled, self._next = self._next, None
        return scheduled

    def ready(self) -> str | None:
        """Returns the preset of the requested switch once this process is ready for it, else None."""
        return self._requested.preset if self._requested is not None and self._requested.ready.done() else None

    def take_requested(self, preset: str) -> Pending | None:
        """Returns the requested switch if its target is still `preset`, else None."""
        if self._requested is None or self._requested.preset != preset:
            return None
        requested, self._requested = self._requested, None
        return requested

    def finished(self, pending: Pending) -> Ready:
        """Waits for a compilation and returns its result. Raises what it raised."""
        self._report_phases_of(pending)
        ready, self._first = pending.ready.result(), None  # which would keep the run's first program for ever
        self._describe(ready.program)
        return ready

    def report(self) -> None:
        """Publishes the phases that have begun and the compilations and inspections that are done."""
        known = [each for each in (self._first, self._requested, self._next, self._likely) if each is not None]
        done = [pending for pending in known if pending.ready.done()]
        for pending in known:  # after `done` is taken: it includes every phase of those
            self._report_phases_of(pending)
        for pending in done:
            if pending.ready.exception() is None:
                self._describe(pending.ready.result().program)
        if self._likely is not None and self._likely in done:
            self._end_likely(_problem(self._likely))
        if self._next is not None and self._next in done and not self._next.is_reported:
            self._next.is_reported = True
            self._publish(AheadEnded(preset=self._next.preset, problem=_problem(self._next)))
        if (kept := self._compiler.kept.presets) != self._kept:
            self._kept = kept
            limit = self._compiler.kept.limit_bytes
            self._publish(ProgramsKept(presets=kept, bytes=self._compiler.kept.bytes, limit_bytes=limit))
        for preset, inspection in self._inspections.items():
            if inspection is not None and inspection.done():
                self._inspections[preset] = None
                self._publish(_inspected(preset, inspection))

    def _describe(self, program: Program) -> None:
        if program.name not in self._described:
            self._described.add(program.name)
            self._publish(program.description)

    def _submit(self, urgency: Urgency, preset: str, active: Program) -> Pending:
        return Pending(preset, self._compiler.wake, partial(self._compiler.request, urgency, active, preset))

    def _report_phases_of(self, pending: Pending) -> None:
        for phase in pending.take_phases():
            self._report_phase(pending.preset, phase)

    def _report_phase(self, preset: str, phase: Phase) -> None:
        is_requested = self._requested is not None and self._requested.preset == preset
        ahead = {pending.preset for pending in (self._next, self._likely) if pending is not None}
        self._publish(PresetCompiling(preset=preset, phase=phase, ahead=preset in ahead and not is_requested))

    def _end_likely(self, problem: str | None) -> None:
        if self._likely is not None:
            self._publish(AheadEnded(preset=self._likely.preset, problem=problem))
            self._likely = None


def _problem(pending: Pending) -> str | None:
    error = pending.ready.exception()
    return problems_in(error)[0] if error else None


def _inspected(preset: str, inspection: Future[PresetInspected]) -> PresetInspected:
    """Returns the inspection, also if it failed: a viewer waits for it."""
    try:
        return inspection.result()
    except BaseException as error:  # of the user's code, perhaps
        return PresetInspected(preset=preset, arrays=[], rematerializations=[], problem=error_line(error))
