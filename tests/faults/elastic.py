"""SIGKILL of one or two processes of a supervised run: it must go on by itself, with the same losses."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..conftest import SETTINGS
from .row import Row
from .supervised import Found, Trained, differing, events, spread, started, trained_alone

COUNTS = (1, 2, 4)
MOST = 8
"""Processes of one run of the long form: on two cores, it takes minutes."""
STEPS = 300
KILLS = 10
"""In each run, so that all of them come before its last step."""
LATEST = 30
"""Most steps from the first of an engine to a kill at any moment."""
SWITCHES = tuple(f"--switch={20 * index}:{('fsdp', 'dp-tp2', 'dp')[index % 3]}" for index in range(1, STEPS // 20))
MOMENTS = {
    "any moment": "StepDone",
    "a save": "CheckpointSaving",
    "a switch": "Switching",
    "a compilation": "PresetCompiling",
}
"""Moments of kills, and the event that begins each."""


@dataclass
class Killed(Found):
    of_two: int = 0
    """How many kills were of two processes at once."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for runs of 1, 2 and 4 processes: `times` of each, with `KILLS` kills of one or two processes."""
    alone = trained_alone(_train("killed-alone"))
    for count in COUNTS:
        yield _row(_all_killed(count, times, alone), count)
    if times > 1:
        yield _row(_all_killed(MOST, 1, alone), MOST)


def _all_killed(count: int, times: int, alone: dict[int, float]) -> Killed:
    found, chance = Killed(), random.Random(count)
    for number in range(times):
        losses = _killed(f"killed-{count}-{number}", count, chance, found)
        if losses.keys() != alone.keys():
            found.wrong.append(f"{len(losses)} steps, not {len(alone)}")
        found.wrong += differing(losses, alone)
    return found


def _row(found: Killed, count: int) -> Row:
    moments = ", ".join(f"{found.faults[moment]} in {moment}" for moment in list(MOMENTS)[1:])
    kills = f"{found.of_process_0} of process 0, {found.of_two} of two at once; kill to next step: {spread(found.gaps)}"
    return found.row(f"SIGKILL in a supervised run of {count}", f"{moments}, {kills}")


def _killed(name: str, count: int, chance: random.Random, found: Killed) -> dict[int, float]:
    """Returns the losses of a run whose processes are killed, by step; adds the rest to `found`."""
    pids, run, due = [0], Trained(found.wrong), chance.choices(list(MOMENTS), k=KILLS)
    killed_at, is_back, wanted = 0.0, False, 0
    step, last = 0, 0  # now, and at the last kill: three at one step would be taken for a fault of that step
    process = _train(name, "--supervise", f"--processes={count}", "--restarts=1000")
    for event in events(process):
        run.note(event)
        match event["type"]:
            case "EngineStarted":
                pids, is_back = [event["pid"]], True
                wanted = 1 + chance.randrange(LATEST) * (due[:1] == ["any moment"])
            case "EngineReady" if event["hosts"]:
                pids = [host["pid"] for host in event["hosts"]]
            case "StepDone":
                step = event["step"]
                if killed_at and is_back:  # steps from before the kill may still be on their way
                    found.gaps.append(time.monotonic() - killed_at)
                    killed_at = 0.0
            case _:
                pass
        if due and event["type"] == MOMENTS[due[0]] and run.of_engine >= wanted and step != last and not killed_at:
            victims = chance.sample(range(count), chance.randint(1, min(count, 2)))
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):  # ended because of the other one
                    os.kill(pids[victim], signal.SIGKILL)
            killed_at, is_back, last = time.monotonic(), False, step
            found.faults[due.pop(0)] += 1
            found.of_process_0 += 0 in victims
            found.of_two += len(victims) == 2
    if code := process.wait():
        found.wrong.append(f"it ended with {code}")
    found.wrong += [f"{name}: never in {moment}" for moment in due]
    return run.losses


def _train(name: str, *options: str) -> "subprocess.Popen[str]":
    return started(*SETTINGS, f"--run={name}", f"--steps={STEPS}", "--checkpoint-every=10", *SWITCHES, *options)
