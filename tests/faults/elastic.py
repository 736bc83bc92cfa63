"""SIGKILL of one process of a supervised run at random moments: it must go on by itself, with the same losses."""

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..conftest import SETTINGS, SHARDTUI
from .row import Row

COUNTS = (1, 2, 4)
STEPS = 400
KILLS = 2
"""In each run of the short form."""
LATEST = 4.0
"""Most seconds from the first step of an engine to the kill: it also meets switches, saves and compilations."""
LIMIT = 300.0
"""Seconds without an event after which a run counts as one that hangs."""
SWITCHES = ("--switch=60:fsdp", "--switch=150:dp-tp2", "--switch=250:dp")
TOLERANCE = 1e-5

Event = dict[str, Any]


@dataclass
class Run:
    """What happened to one supervised run."""

    wrong: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds from each kill to the next step."""
    losses: dict[int, float] = field(default_factory=dict)
    kills: int = 0


def run(times: int) -> list[Row]:
    """Kills processes of runs with 1, 2 and 4 of them, `KILLS` times `times` each."""
    alone = Run()
    for event in _events(_train("alone")):
        _note(alone, event)
    return [_row(_killed(count, KILLS * times, random.Random(count)), count, alone) for count in COUNTS]


def _row(found: Run, count: int, alone: Run) -> Row:
    if found.losses.keys() != alone.losses.keys():
        found.wrong.append(f"{len(found.losses)} steps, not {len(alone.losses)}")
    far = [step for step, loss in alone.losses.items() if abs(found.losses.get(step, 0) / loss - 1) > TOLERANCE]
    found.wrong += [f"the loss of step {step} differs" for step in far[:1]]
    found.wrong += [] if found.gaps else ["no process was killed"]
    note = "; ".join(found.wrong[:3]) or (
        f"kill to next step: median {median(found.gaps):.1f} s, longest {max(found.gaps):.1f} s; losses as without "
        "kills, nothing committed lost"
    )
    return Row(f"SIGKILL in a supervised run of {count}", max(found.kills, 1), found.kills - len(found.wrong), note)


def _killed(count: int, kills: int, chance: random.Random) -> Run:
    found, pids, killed_at = Run(), [0], 0.0
    committed, timer = 0, None
    process = _train(f"killed-{count}", "--supervise", f"--processes={count}", "--restarts=1000")
    for event in _events(process):
        _note(found, event)
        match event["type"]:
            case "EngineStarted":
                pids, timer = [event["pid"]], None
            case "EngineReady" if event["hosts"]:
                pids = [host["pid"] for host in event["hosts"]]
            case "CheckpointSaved":
                committed = event["step"]
            case "Restored" if event["step"] < committed:
                found.wrong.append(f"step {committed} was committed, {event['step']} was restored")
            case "StepDone":
                if killed_at:
                    found.gaps.append(time.monotonic() - killed_at)
                    killed_at = 0.0
                if timer is None and found.kills < kills:
                    timer = time.monotonic() + chance.uniform(0, LATEST)
            case _:
                pass
        if timer and not killed_at and time.monotonic() > timer and found.kills < kills:
            os.kill(chance.choice(pids), signal.SIGKILL)
            found.kills, killed_at, timer = found.kills + 1, time.monotonic(), 0.0
    if process.wait():
        found.wrong.append(f"it ended with {process.returncode}")
    return found


def _train(name: str, *options: str) -> "subprocess.Popen[str]":
    command = [*SHARDTUI, "train", "--json", *SETTINGS, f"--run={name}", f"--steps={STEPS}", "--checkpoint-every=10"]
    return subprocess.Popen(
        [*command, *SWITCHES, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _events(process: "subprocess.Popen[str]") -> Iterator[Event]:
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


def _note(run: Run, event: Event) -> None:
    if event["type"] == "StepDone":
        run.losses[event["step"]] = event["loss"]
