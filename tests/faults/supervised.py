"""Supervised runs of `train`: their events, and what they have trained and committed."""

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

from ..conftest import SHARDTUI
from .row import Row

LIMIT = 300.0
"""Seconds without an event after which a run counts as one that hangs."""
TOLERANCE = 1e-5

Event = dict[str, Any]
T = TypeVar("T")


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
    of_engine: int = 0
    """Steps of the engine that runs now."""
    _committed: int = 0

    def note(self, event: Event) -> None:
        """Records an event."""
        match event["type"]:
            case "EngineStarted":
                self.of_engine = 0
            case "StepDone":
                self.losses[event["step"]] = event["loss"]
                self.of_engine += 1
            case "CheckpointSaved":
                self._committed = event["step"]
            case "Restored" if event["step"] < self._committed:
                self.wrong.append(f"step {self._committed} was committed, {event['step']} was restored")
            case _:
                pass


def trained_alone(process: "subprocess.Popen[str]") -> dict[int, float]:
    """Returns the losses of a run without faults, by step."""
    run = Trained()
    for event in events(process):
        run.note(event)
    assert process.wait() == 0, "a run without faults failed"
    return run.losses


def differing(losses: Mapping[int, float], alone: Mapping[int, float]) -> list[str]:
    """Names the first step of a run without faults whose loss differs, or is missing; empty if none is."""
    far = [step for step in sorted(alone) if abs(losses.get(step, 0) / alone[step] - 1) > TOLERANCE]
    return [f"the loss of step {step} differs" for step in far[:1]]


@dataclass
class Found:
    """What happened to runs with faults."""

    wrong: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds from each fault to the next step."""
    faults: Counter[str] = field(default_factory=Counter)
    of_process_0: int = 0
    """How many faults were of process 0."""

    def row(self, injected: str, note: str) -> Row:
        times = self.faults.total()
        seen = "; ".join(self.wrong[:3]) or f"{note}; losses as without faults, nothing committed lost"
        return Row(injected, max(times, 1), times - len(self.wrong), seen)


def spread(seconds: list[float]) -> str:
    return f"median {median(seconds):.1f} s, longest {max(seconds):.1f} s" if seconds else "never"
