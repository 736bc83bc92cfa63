"""What is compiled beside the steps: the switches that were asked for, are scheduled or are likely, and looks into
presets."""

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..base.advice import problems_in
from ..distributed.cluster import Cluster
from ..program.compile_queue import Urgency
from ..program.compiler import Compiler, Ready
from ..program.program import Program
from ..spec.config import ScheduledSwitch
from ..wire.events import AheadEnded, Event, Phase, PresetCompiling, PresetInspected, ProgramsKept, SwitchCancelled

MOST_AHEAD = 3
"""Presets that were compiled because they were likely, and that no switch went to: each takes memory of the host."""


class Dropped(Exception):
    """Ends a compilation between two of its phases, as nobody waits for it any more."""


class Phases:
    """Of one compilation: which it has begun, and whether it is still wanted."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_wanted = True
        self._wake = wake
        self._begun: queue.SimpleQueue[Phase] = queue.SimpleQueue()

    def begin(self, phase: Phase) -> None:
        """Called in the compiler's thread. Raises Dropped."""
        if not self.is_wanted:
            raise Dropped
        self._begun.put(phase)
        self._wake()

    def take(self) -> Iterator[Phase]:
        """Those that were begun since the last call."""
        while not self._begun.empty():
            yield self._begun.get()


@dataclass(frozen=True)
class Pending:
    """A program, or a switch, that is being prepared."""

    preset: str
    phases: Phases
    ready: Future[Any]

    def drop(self) -> None:
        """What waits is never begun; what has begun ends before its next phase."""
        self.phases.is_wanted = False
        self.ready.cancel()


class Preparations:
    """At most one switch that was asked for, the next one of the schedule, and a likely one. Used by the training
    thread alone."""

    def __init__(
        self,
        compiler: Compiler,
        switches: Sequence[ScheduledSwitch],
        cluster: Cluster,
        publish: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called in another thread once something is prepared."""
        self._compiler = compiler
        self._cluster = cluster
        self._scheduled = sorted(switches, key=lambda switch: switch.step)
        self._publish = publish
        self._wake = wake
        self._asked: Pending | None = None
        self._requests = 0
        """Switches that were asked for, those that were taken back included: the same number in every process."""
        self._next: Pending | None = None
        self._is_next_told = False
        self._wish: str | None = None
        """The preset that is likely, until its compilation begins."""
        self._likely: Pending | None = None
        self._unused: set[str] = set()
        """Presets that were likely and are compiled."""
        self._described: set[str] = set()
        self._looks: dict[str, Future[PresetInspected] | None] = {}
        """By preset; None once told."""
        self._first: Pending | None = None
        self._kept: list[str] = []
        """Programs that are kept, as reported last."""

    def first(self, preset: str) -> Future[Program]:
        """The program that a run begins with."""
        self._publish(PresetCompiling(preset=preset))
        phases = Phases(self._wake)
        self._first = Pending(preset, phases, self._compiler.first(preset, phases.begin, self._wake))
        return self._first.ready

    def ask(self, preset: str, active: Program) -> None:
        """In the place of a switch that is not finished; the active preset takes that one back."""
        if self._asked is not None:
            if self._asked.preset == preset:
                return
            self._publish(SwitchCancelled(to_preset=self._asked.preset))
            self._asked.drop()
            self._asked = None
        if self._likely is not None and self._likely.preset != preset:
            self._likely.drop()
            self._end_likely("a switch to another one was asked for")
        if preset != active.name:
            self._publish(PresetCompiling(preset=preset))
            self._asked = self._request(Urgency.ASKED, preset, active)
            self._requests += 1
            self._asked.ready.add_done_callback(partial(self._note, self._asked.phases, f"switch-{self._requests}"))

    def _note(self, phases: Phases, name: str, _: Future[Any]) -> None:
        """Called in the compiler's thread."""
        if phases.is_wanted:
            self._cluster.note(name)

    def expect(self, preset: str) -> None:
        """A switch to it is likely, and to no other."""
        self._wish = preset

    def compile_likely(self, active: Program, has_core_to_spare: Callable[[], bool]) -> None:
        """If there is one, nothing else is compiled, and the machine has nothing better to do."""
        is_busy = any(pending is not None and not pending.ready.done() for pending in (self._asked, self._next))
        if self._wish is None or self._likely or is_busy or len(self._unused) >= MOST_AHEAD:
            return
        if not has_core_to_spare():
            return
        preset, self._wish = self._wish, None
        if preset not in self._described or preset not in self._compiler.kept:
            self._likely = self._request(Urgency.LIKELY, preset, active)
            self._tell_phase(preset, "wait")

    def look_into(self, preset: str) -> None:
        """Once for each preset."""
        if preset not in self._looks:
            self._looks[preset] = self._compiler.inspect(preset, self._wake)

    def look_ahead(self, active: Program) -> None:
        """The next switch of the schedule is compiled before its step."""
        if self._scheduled and self._next is None:
            preset = self._scheduled[0].preset
            self._next, self._is_next_told = self._request(Urgency.SCHEDULED, preset, active), False
            self._tell_phase(preset, "wait")

    def take_scheduled(self, step: int, active: Program) -> Pending | None:
        """The switch that falls after `step`, ready or not; it takes the place of one that was asked for."""
        if not self._scheduled or self._scheduled[0].step != step:
            return None
        self.ask(active.name, active)
        switch = self._scheduled.pop(0)
        scheduled, self._next = self._next, None
        self._unused.discard(switch.preset)
        return scheduled

    def ready(self) -> str | None:
        """The preset of the switch that was asked for, once every process has all that it needs. For process 0."""
        if self._asked is None or not self._asked.ready.done():
            return None
        return self._asked.preset if self._cluster.have_all_noted(f"switch-{self._requests}") else None

    def take_asked(self, preset: str) -> Pending | None:
        """The switch that was asked for, if it still goes there."""
        if self._asked is None or self._asked.preset != preset:
            return None
        asked, self._asked = self._asked, None
        self._unused.discard(preset)
        self._cluster.forget(f"switch-{self._requests}")
        return asked

    def finished(self, pending: Pending) -> Ready:
        """What was prepared, once it is."""
        self._tell_phases_of(pending)
        ready = pending.ready.result()
        self.describe(ready.program)
        return ready

    def tell(self) -> None:
        """Of what has begun and what is finished."""
        done = [
            pending
            for pending in (self._asked, self._next, self._likely)
            if pending is not None and pending.ready.done()
        ]
        self._tell_phases()  # all of those that are done
        for pending in done:
            if pending.ready.exception() is None:
                self.describe(pending.ready.result().program)
        if self._likely is not None and self._likely in done:
            self._end_likely(_problem(self._likely))
        if self._next is not None and self._next in done and not self._is_next_told:
            self._is_next_told = True
            self._publish(AheadEnded(preset=self._next.preset, problem=_problem(self._next)))
        if (kept := self._compiler.kept.presets) != self._kept:
            self._kept = kept
            limit = self._compiler.kept.limit_bytes
            self._publish(ProgramsKept(presets=kept, bytes=self._compiler.kept.bytes, limit_bytes=limit))
        for preset, look in self._looks.items():
            if look is not None and look.done():
                self._looks[preset] = None
                self._publish(_inspected(preset, look))

    def describe(self, program: Program) -> None:
        """Tells of a preset's layout, once a run."""
        if program.name not in self._described:
            self._described.add(program.name)
            self._publish(program.description)

    def _request(self, urgency: Urgency, preset: str, active: Program) -> Pending:
        phases = Phases(self._wake)
        ready = self._compiler.request(urgency, active, preset, phases.begin, self._wake)
        return Pending(preset, phases, ready)

    def _tell_phases(self) -> None:
        for pending in (self._first, self._asked, self._next, self._likely):
            if pending is not None:
                self._tell_phases_of(pending)

    def _tell_phases_of(self, pending: Pending) -> None:
        for phase in pending.phases.take():
            self._tell_phase(pending.preset, phase)

    def _tell_phase(self, preset: str, phase: Phase) -> None:
        is_asked = self._asked is not None and self._asked.preset == preset
        ahead = {pending.preset for pending in (self._next, self._likely) if pending is not None}
        self._publish(PresetCompiling(preset=preset, phase=phase, ahead=preset in ahead and not is_asked))

    def _end_likely(self, problem: str | None) -> None:
        if self._likely is not None:
            self._publish(AheadEnded(preset=self._likely.preset, problem=problem))
            if problem is None:
                self._unused.add(self._likely.preset)
            self._likely = None


def _problem(pending: Pending) -> str | None:
    """Of what is done."""
    error = pending.ready.exception()
    return problems_in(error)[0] if error else None


def _inspected(preset: str, look: Future[PresetInspected]) -> PresetInspected:
    """What came out, also where nothing did: a viewer waits for it."""
    try:
        return look.result()
    except Exception as error:
        return PresetInspected(
            preset=preset, arrays=[], rematerializations=[], problem=f"{type(error).__name__}: {error}"
        )
