"""What is compiled beside the steps: the switches that were asked for or are scheduled, and looks into presets."""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from .compiler import Compiler, Ready
from .config import ScheduledSwitch
from .program import Program
from .protocol import Event, Phase, PresetCompiling, PresetInspected, SwitchCancelled


@dataclass(frozen=True)
class Pending:
    """A switch that is being prepared."""

    preset: str
    ready: Future[Ready]


class Preparations:
    """At most one switch that was asked for, and the next one of the schedule. Used by the training thread alone."""

    def __init__(
        self,
        compiler: Compiler,
        switches: Sequence[ScheduledSwitch],
        publish: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called in another thread once something is prepared."""
        self._compiler = compiler
        self._scheduled = sorted(switches, key=lambda switch: switch.step)
        self._publish = publish
        self._wake = wake
        self._asked: Pending | None = None
        self._ahead: Pending | None = None
        self._described: set[str] = set()
        self._looks: dict[str, Future[PresetInspected] | None] = {}
        """By preset; None once told."""
        self._phases: queue.SimpleQueue[PresetCompiling] = queue.SimpleQueue()
        """Begun in the compiler's thread and not told yet. What is taken back compiles on and tells a queue that
        nobody reads any more."""

    def first(self, preset: str) -> Future[Program]:
        """The program that a run begins with."""
        self._publish(PresetCompiling(preset=preset))
        return self._compiler.first(preset, partial(self._begun, self._phases, preset), self._wake)

    def ask(self, preset: str, active: Program) -> None:
        """In the place of a switch that is not finished; the active preset takes that one back."""
        if self._asked is not None:
            if self._asked.preset == preset:
                return
            self._publish(SwitchCancelled(to_preset=self._asked.preset))
            self._asked = None
            self._compiler.abandon()
            self._phases = queue.SimpleQueue()
        if preset != active.name:
            self._asked = self._prepare(preset, active)

    def look_into(self, preset: str) -> None:
        """Once for each preset."""
        if preset not in self._looks:
            self._looks[preset] = self._compiler.inspect(preset, self._wake)

    def look_ahead(self, active: Program) -> None:
        """The next switch of the schedule is compiled before its step."""
        if self._scheduled and self._ahead is None:
            self._ahead = self._prepare(self._scheduled[0].preset, active)

    def take_scheduled(self, step: int, active: Program) -> Pending | None:
        """The switch that falls after `step`, ready or not; it takes the place of one that was asked for."""
        if not self._scheduled or self._scheduled[0].step != step:
            return None
        self.ask(active.name, active)
        self._scheduled.pop(0)
        scheduled, self._ahead = self._ahead, None
        return scheduled

    def take_ready(self) -> Pending | None:
        """The switch that was asked for, once everything for it is there."""
        if self._asked is None or not self._asked.ready.done():
            return None
        ready, self._asked = self._asked, None
        return ready

    def tell(self) -> None:
        """Of what has begun and what is finished."""
        while not self._phases.empty():
            self._publish(self._phases.get())
        for pending in (self._asked, self._ahead):
            if pending is not None and pending.ready.done() and pending.ready.exception() is None:
                self.describe(pending.ready.result().program)
        for preset, look in self._looks.items():
            if look is not None and look.done():
                self._looks[preset] = None
                self._publish(_inspected(preset, look))

    def describe(self, program: Program) -> None:
        """Tells of a preset's layout, once a run."""
        if program.name not in self._described:
            self._described.add(program.name)
            self._publish(program.description)

    def _prepare(self, preset: str, active: Program) -> Pending:
        self._publish(PresetCompiling(preset=preset))
        begun = partial(self._begun, self._phases, preset)
        return Pending(preset, self._compiler.request(active, preset, begun, self._wake))

    def _begun(self, phases: "queue.SimpleQueue[PresetCompiling]", preset: str, phase: Phase) -> None:
        """Called in the compiler's thread."""
        phases.put(PresetCompiling(preset=preset, phase=phase))
        self._wake()


def _inspected(preset: str, look: Future[PresetInspected]) -> PresetInspected:
    """What came out, also where nothing did: a viewer waits for it."""
    try:
        return look.result()
    except Exception as error:
        return PresetInspected(
            preset=preset, arrays=[], rematerializations=[], problem=f"{type(error).__name__}: {error}"
        )
