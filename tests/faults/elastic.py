"""SIGKILL of one or two processes of a supervised run: it must go on by itself, with the same losses."""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from ..conftest import SETTINGS
from .row import Row
from .supervised import Found, Trained, differing, spread, started, trained_alone

COUNTS = (1, 2, 4)
MOST = 8
"""Processes of one run of the long form: on two cores, it takes minutes."""
STEPS = 300
KILLS = 10
"""In each run, so that all of them come before its last step."""
LATEST = 30
"""Most steps from the first of an engine to a kill at any moment."""
SWITCHES = tuple(f"--switch={20 * index}:{('fsdp', 'dp-tp2', 'dp')[index % 3]}" for index in range(1, STEPS // 20))
OPTIONS = (*SETTINGS, f"--steps={STEPS}", "--checkpoint-every=10", *SWITCHES)
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
    alone = trained_alone(*OPTIONS, "--run=killed-alone")
    for count in COUNTS:
        yield _killed(count, times, alone)
    if times > 1:
        yield _killed(MOST, 1, alone)


def _killed(count: int, times: int, alone: dict[int, float]) -> Row:
    found, chance = Killed(), random.Random(count)
    for number in range(times):
        losses = _losses(f"killed-{count}-{number}", count, chance, found)
        if losses.keys() != alone.keys():
            found.wrong.append(f"{len(losses)} steps, not {len(alone)}")
        found.wrong += differing(losses, alone)
    moments = ", ".join(f"{found.faults[moment]} in {moment}" for moment in list(MOMENTS)[1:])
    kills = f"{found.of_process_0} of process 0, {found.of_two} of two at once; kill to next step: {spread(found.gaps)}"
    return found.row(f"SIGKILL in a supervised run of {count}", f"{moments}, {kills}")


def _losses(name: str, count: int, chance: random.Random, found: Killed) -> dict[int, float]:
    """Returns the losses of a run whose processes are killed, by step; adds the rest to `found`."""
    run, due, wanted = Trained(found.wrong), chance.choices(list(MOMENTS), k=KILLS), 0
    last = 0  # step of the last kill: three at one step would be taken for a fault of that step
    supervised = ("--supervise", f"--processes={count}", "--restarts=1000")
    for event, pids in found.follow(started(*OPTIONS, f"--run={name}", *supervised), run):
        if event["type"] == "EngineStarted":
            wanted = 1 + chance.randrange(LATEST) * (due[:1] == ["any moment"])
        is_now = due and event["type"] == MOMENTS[due[0]] and run.of_engine >= wanted and run.step != last
        if is_now and not found.began:
            victims = chance.sample(range(count), chance.randint(1, min(count, 2)))
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):  # ended because of the other one
                    os.kill(pids[victim], signal.SIGKILL)
            last = run.step
            found.begin(due.pop(0), victims)
            found.of_two += len(victims) == 2
    found.wrong += [f"{name}: never in {moment}" for moment in due]
    return run.losses
