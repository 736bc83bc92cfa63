"""Supervised runs of `train`: their events, and what they have trained and committed."""

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from ..conftest import SHARDTUI
from .launched import Event
from .row import Row

LIMIT = 300.0
"""Seconds without an event after which a run counts as one that hangs."""


def started(*options: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """Starts `train`, which prints its events."""
    command = [*SHARDTUI, "train", "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def events(process: "subprocess.Popen[str]") -> Iterator[Event]:
    """Yields the events of a run, which is ended if there is none for long."""
    assert process.stdout
    while True:
        hangs = threading.Timer(LIMIT, process.terminate)
        hangs.start()
        line = process.stdout.readline()
        hangs.cancel()
        if not line:
            return
        yield json.loads(line)


@dataclass
class Trained:
    """What a run has trained and committed, by its events so far."""

    wrong: list[str] = field(default_factory=list)
    """What it lost."""
    losses: dict[int, float] = field(default_factory=dict)
    """By step, as trained last."""
    step: int = 0
    of_engine: int = 0
    """Steps of the engine that runs now."""
    _committed: int = 0

    def note(self, event: Event) -> None:
        match event["type"]:
            case "EngineStarted":
                self.of_engine = 0
            case "StepDone":
                self.step = event["step"]
                self.losses[self.step] = event["loss"]
                self.of_engine += 1
            case "CheckpointSaved":
                self._committed = event["step"]
            case "Restored" if event["step"] < self._committed:
                self.wrong.append(f"step {self._committed} was committed, {event['step']} was restored")
            case _:
                pass

    def note_all(self, made: Iterable[Event]) -> "Trained":
        for event in made:
            self.note(event)
        return self


def trained_alone(*options: str) -> dict[int, float]:
    """Returns the losses of a run without faults, by step."""
    process = started(*options)
    run = Trained().note_all(events(process))
    assert process.wait() == 0, "a run without faults failed"
    return run.losses


def differing(losses: Mapping[int, float], alone: Mapping[int, float]) -> list[str]:
    """Names the first step of a run without faults whose loss differs, or is missing; empty if none is."""
    far = [step for step in sorted(alone) if abs(losses.get(step, 0) / alone[step] - 1) > 1e-5]
    return [f"the loss of step {step} differs" for step in far[:1]]


@dataclass
class Found:
    """What happened to runs with faults."""

    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    of_process_0: int = 0
    """How many faults were of process 0."""
    restarts: list[float] = field(default_factory=list)
    """Seconds from each fault to the start of the next engine."""
    gaps: list[float] = field(default_factory=list)
    """Seconds from each fault to the next step."""
    began: float = 0.0
    """When the fault began from which the run has not recovered; 0 if there is none."""

    def begin(self, fault: str, victims: Iterable[int] = ()) -> None:
        self.began = time.monotonic()
        self.faults[fault] += 1
        self.of_process_0 += 0 in victims

    def recovered(self) -> None:
        self.gaps.append(time.monotonic() - self.began)
        self.began = 0.0

    def follow(self, process: "subprocess.Popen[str]", run: Trained) -> Iterator[tuple[Event, list[int]]]:
        """Yields each event and the pids of the processes that train, of which the caller may cause faults."""
        self.began, pids, is_back = 0.0, [0], False
        for event in events(process):
            run.note(event)
            match event["type"]:
                case "EngineStarted":
                    pids, is_back = [event["pid"]], True
                    if self.began:
                        self.restarts.append(time.monotonic() - self.began)
                case "EngineReady" if event["hosts"]:
                    pids = [host["pid"] for host in event["hosts"]]
                case "StepDone" if self.began and is_back:  # steps from before the fault may still be on their way
                    self.recovered()
                case _:
                    pass
            is_back &= bool(self.began)
            yield event, pids
        if code := process.wait():
            self.wrong.append(f"it ended with {code}")

    def row(self, injected: str, note: str) -> Row:
        times = self.faults.total()
        seen = "; ".join(self.wrong[:3]) or f"{note}; losses as without faults, nothing committed lost"
        return Row(injected, max(times, 1), times - len(self.wrong), seen)


def spread(seconds: list[float]) -> str:
    return f"median {median(seconds):.1f} s, longest {max(seconds):.1f} s" if seconds else "never"
