"""An engine that trains while faults are injected, and the checks that it must pass afterwards."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import AnyEvent, MemoryMeasured, StepsDone, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import tiny_config
from ..processes import awaited

E = TypeVar("E")


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
        self.reported += read(self.reader)
        return self.reported

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events() if isinstance(event, kind)]

    def wait_for_steps(self, more: int = 3) -> None:
        """Raises TimeoutError if the engine makes none."""
        before = last_step(self.events())
        awaited(lambda: last_step(self.events()) >= before + more, "a step", 60, self.is_over)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def problem(self, *allowed: type[AnyEvent]) -> str:
        """Returns what went wrong since the last call; empty if steps continue without gaps or unexpected events.

        `allowed`: events that may occur in addition to steps and memory in use.
        """
        try:
            self.wait_for_steps()
        except TimeoutError as error:
            return str(error)
        events, seen = self.events(), self.seen
        self.seen = len(events)
        kinds = (StepsDone, MemoryMeasured, *allowed)
        others = {type(event).__name__ for event in events[seen:] if not isinstance(event, kinds)}
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            return "events are missing"
        if [step for step, _ in losses(events)] != list(range(1, last_step(events) + 1)):
            return "steps are missing, or were made twice"
        if "Traceback" in self.directory.log.read_text(errors="replace"):
            return "a traceback in engine.log"
        return f"it reported {', '.join(sorted(others))}" if seen and others else ""


def read(reader: LogReader) -> list[AnyEvent]:
    """Returns the events that were not read before."""
    try:
        return [event for events in reader.read() for event in events]
    except FileNotFoundError:
        return []


def losses(events: list[AnyEvent]) -> list[tuple[int, float | None]]:
    """Returns each step that was reported, with its loss."""
    return [
        pair
        for event in events
        if isinstance(event, StepsDone)
        for pair in enumerate(event.losses, event.step - len(event.losses) + 1)
    ]


def last_step(events: list[AnyEvent]) -> int:
    return next((event.step for event in reversed(events) if isinstance(event, StepsDone)), 0)


@contextmanager
def living_engine(name: str) -> Iterator[Living]:
    """Starts an engine and waits for its first steps; ends it on exit."""
    checkpoints = CheckpointConfig(every_minutes=None)  # it reports nothing but steps
    directory = run_directory.create(tiny_config(run=name, checkpoints=checkpoints))
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
        awaited(lambda: living.of(TrainingStarted), directory.log.read_text, is_over=living.is_over)
        living.wait_for_steps()
        living.seen = len(living.events())
        yield living
    finally:
        process.terminate()
        process.wait(timeout=60)
