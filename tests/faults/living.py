"""An engine that trains while faults are injected, and the checks that it must pass afterwards."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from shardtui.engine.spec.config import CheckpointConfig, ScheduledSwitch
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import AnyEvent, MemoryMeasured, StepsDone, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import tiny_config
from ..processes import awaited


@dataclass
class Living:
    """A live engine and the events that it has reported."""

    directory: RunDirectory
    process: subprocess.Popen[bytes]
    seen: int = 0
    """Number of events that `problem` has checked."""
    reported: list[AnyEvent] = field(default_factory=list[AnyEvent])

    def __post_init__(self) -> None:
        self.reader = LogReader(self.directory.events)

    def events(self) -> list[AnyEvent]:
        """Returns all events since the engine started."""
        self.reported += [event for events in self.reader.read() for event in events]
        return self.reported

    def wait_for_steps(self, more: int = 3) -> int:
        """Waits for more steps and returns the number done. Raises TimeoutError if the engine makes none."""
        before = _steps(self.events())
        awaited(lambda: _steps(self.events()) >= before + more, "a step", 60, lambda: self.process.poll() is not None)
        return _steps(self.reported)

    def problem(self, allowed: tuple[type[AnyEvent], ...] = ()) -> str:
        """Returns what went wrong since the last call; empty if steps continue without gaps or unexpected events.

        `allowed`: events that may occur in addition to steps and memory in use.
        """
        try:
            self.wait_for_steps()
        except AssertionError as error:
            return str(error)
        events, seen = self.events(), self.seen
        self.seen = len(events)
        others = {
            type(event).__name__
            for event in events[seen:]
            if not isinstance(event, (StepsDone, MemoryMeasured, *allowed))
        }
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            return "events are missing"
        if gaps(events):
            return f"steps are missing: {gaps(events)}"
        if "Traceback" in self.directory.log.read_text(errors="replace"):
            return "a traceback in engine.log"
        return f"it reported {', '.join(sorted(others))}" if seen and others else ""


def gaps(events: list[AnyEvent]) -> list[tuple[int, int]]:
    """Returns where steps were not reported exactly once, in order."""
    done = 0
    found: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, StepsDone):
            if event.step - len(event.losses) != done:
                found.append((done, event.step))
            done = event.step
    return found


def _steps(events: list[AnyEvent]) -> int:
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)


@contextmanager
def living_engine(name: str, switches: tuple[ScheduledSwitch, ...] = ()) -> Iterator[Living]:
    """Starts an engine and waits for its first steps; ends it on exit."""
    checkpoints = CheckpointConfig(every_minutes=None)  # it reports nothing but steps
    directory = run_directory.create(tiny_config(run=name, switches=switches, checkpoints=checkpoints))
    with directory.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shardtui.engine", "serve", str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        living = Living(directory, process)
        awaited(
            lambda: directory.events.exists() and any(isinstance(e, TrainingStarted) for e in living.events()),
            directory.log.read_text,
            is_over=lambda: process.poll() is not None,
        )
        living.wait_for_steps()
        living.seen = len(living.events())
        yield living
    finally:
        process.terminate()
        process.wait(timeout=60)
