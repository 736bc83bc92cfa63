"""SIGKILL of one process of a supervised run: it must go on by itself, with the same losses."""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..conftest import SETTINGS, SHARDTUI
from .row import Row

COUNTS = (1, 2, 4)
STEPS = 400
KILLS = 5
"""In each run, so that all of them come before its last step."""
LATEST = 30
"""Most steps from the first of an engine to a kill at any moment."""
LIMIT = 300.0
"""Seconds without an event after which a run counts as one that hangs."""
SWITCHES = tuple(f"--switch={20 * index}:{('fsdp', 'dp-tp2', 'dp')[index % 3]}" for index in range(1, STEPS // 20))
TOLERANCE = 1e-5
MOMENTS = {
    "any moment": "StepDone",
    "a save": "CheckpointSaving",
    "a switch": "Switching",
    "a compilation": "PresetCompiling",
}
"""Moments of kills, and the event that begins each."""

Event = dict[str, Any]


@dataclass
class Killed:
    """What happened to supervised runs whose processes were killed."""

    wrong: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds from each kill to the next step."""
    moments: Counter[str] = field(default_factory=Counter)
    """Kills by moment."""
    of_process_0: int = 0
    """Kills of process 0."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for runs of 1, 2 and 4 processes: `times` of each, in which `KILLS` processes are killed."""
    alone = dict(loss(event) for event in events(_train("alone")) if event["type"] == "StepDone")
    for count in COUNTS:
        yield _row(_all_killed(count, times, alone), count)


def _all_killed(count: int, times: int, alone: dict[int, float]) -> Killed:
    found, chance = Killed(), random.Random(count)
    for number in range(times):
        losses = _killed(f"killed-{count}-{number}", count, chance, found)
        if losses.keys() != alone.keys():
            found.wrong.append(f"{len(losses)} steps, not {len(alone)}")
        far = [step for step, loss in alone.items() if abs(losses.get(step, 0) / loss - 1) > TOLERANCE]
        found.wrong += [f"the loss of step {step} differs" for step in far[:1]]
    return found


def _row(found: Killed, count: int) -> Row:
    kills = found.moments.total()
    moments = ", ".join(f"{found.moments[moment]} in {moment}" for moment in list(MOMENTS)[1:])
    note = "; ".join(found.wrong[:3]) or (
        f"{moments}, {found.of_process_0} of process 0; kill to next step: median {median(found.gaps):.1f} s, longest "
        f"{max(found.gaps):.1f} s; losses as without kills, nothing committed lost"
    )
    return Row(f"SIGKILL in a supervised run of {count}", max(kills, 1), kills - len(found.wrong), note)


def _killed(name: str, count: int, chance: random.Random, found: Killed) -> dict[int, float]:
    """Returns the losses of a run whose processes are killed, by step; adds the rest to `found`."""
    pids, losses, due = [0], dict[int, float](), chance.sample([*MOMENTS, *MOMENTS], KILLS)
    committed, killed_at, is_back, trained, wanted = 0, 0.0, False, 0, 0
    step, last = 0, 0  # now, and at the last kill: three at one step would be taken for a fault of that step
    process = _train(name, "--supervise", f"--processes={count}", "--restarts=1000")
    for event in events(process):
        match event["type"]:
            case "EngineStarted":
                pids, trained, is_back = [event["pid"]], 0, True
                wanted = 1 + chance.randrange(LATEST) * (due[:1] == ["any moment"])
            case "EngineReady" if event["hosts"]:
                pids = [host["pid"] for host in event["hosts"]]
            case "CheckpointSaved":
                committed = event["step"]
            case "Restored" if event["step"] < committed:
                found.wrong.append(f"step {committed} was committed, {event['step']} was restored")
            case "StepDone":
                losses |= [loss(event)]
                step = event["step"]
                trained += 1
                if killed_at and is_back:  # steps from before the kill may still be on their way
                    found.gaps.append(time.monotonic() - killed_at)
                    killed_at = 0.0
            case _:
                pass
        if due and event["type"] == MOMENTS[due[0]] and trained >= wanted and step != last and not killed_at:
            victim = chance.randrange(count)
            with contextlib.suppress(ProcessLookupError):  # the run has ended, earlier than it should
                os.kill(pids[victim], signal.SIGKILL)
            killed_at, is_back, last = time.monotonic(), False, step
            found.moments[due.pop(0)] += 1
            found.of_process_0 += victim == 0
    if code := process.wait():
        found.wrong.append(f"it ended with {code}")
    found.wrong += [f"{name}: never in {moment}" for moment in due]
    return losses


def _train(name: str, *options: str) -> "subprocess.Popen[str]":
    command = [*SHARDTUI, "train", "--json", *SETTINGS, f"--run={name}", f"--steps={STEPS}", "--checkpoint-every=10"]
    return subprocess.Popen(
        [*command, *SWITCHES, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


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


def loss(event: Event) -> tuple[int, float]:
    return event["step"], event["loss"]
