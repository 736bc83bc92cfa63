"""One process of a supervised run is stopped or hangs: it must be named and ended, and the run must go on."""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from ..hanging_model import HangingModel
from .launched import Event
from .row import Row
from .supervised import Found, Trained, differing, spread, started, trained_alone

COUNTS = (2, 4)
STEPS = 600
FAULTS = (("SIGSTOP", "hang"), ("SIGSTOP", "native hang"))
"""What happens in each run, in turn. A native hang keeps Python from running."""
WORDS = {
    "SIGSTOP": "stopped by a signal",
    "hang": "stuck in hang (lm.py:",
    "native hang": "native code that keeps Python",
}
"""What the reason must say."""
FIRST, LATEST = 30, 150
"""Steps from the first of an engine to the fault."""
FOUND_SECONDS = 30.0
"""Longest time until the next engine starts."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for runs of 2 and 4 processes: `times` of each, with two faults."""
    model = HangingModel(Path("stuck").absolute())
    options = (*model.options, f"--steps={STEPS}", "--checkpoint-every=50")
    alone = trained_alone(*options, "--run=stuck-alone")
    for index, count in enumerate(COUNTS):
        found, chance = Found(), random.Random(count)
        for number in range(times):
            supervised = ("--supervise", f"--processes={count}", "--restarts=1000")
            process = started(*options, f"--run=stuck-{count}-{number}", *supervised)
            run, due = Trained(found.wrong), list(FAULTS[(number + index) % 2])
            wanted, fault, victim = 0, "", 0
            for event, pids in found.follow(process, run):
                if event["type"] == "EngineStarted":
                    wanted = chance.randrange(FIRST, LATEST)
                    found.wrong += _misnamed(event, fault, victim, found.restarts[-1]) if found.began else []
                elif event["type"] == "StepDone" and due and run.of_engine >= wanted and not found.began:
                    fault, victim = due.pop(0), chance.randrange(count)
                    found.begin(fault, [victim])
                    _cause(model, fault, victim, pids)
            found.wrong += [f"{number} of {count}: no {fault}" for fault in due]
            found.wrong += differing(run.losses, alone)
        kinds = ", ".join(f"{number} × {kind}" for kind, number in found.faults.items())
        named = f"each named; fault to next engine: {spread(found.restarts)}; to next step: {spread(found.gaps)}"
        note = f"{kinds}, {found.of_process_0} of process 0; {named}"
        yield found.row(f"one process of {count} stopped, or hangs", note)


def _cause(model: HangingModel, fault: str, victim: int, pids: list[int]) -> None:
    if fault == "SIGSTOP":
        with contextlib.suppress(ProcessLookupError):  # the run has ended, earlier than it should
            os.kill(pids[victim], signal.SIGSTOP)
    else:
        model.hang_once(victim, "native" if fault == "native hang" else "sleep")


def _misnamed(event: Event, fault: str, victim: int, seconds: float) -> list[str]:
    lost, wrong = event["attempt"]["lost"], list[str]()
    if lost["process"] != victim or WORDS[fault] not in lost["why"]:
        wrong.append(f"{fault} of {victim}: told was {lost}")
    return wrong + [f"{fault}: found after {seconds:.0f} s"] * (seconds > FOUND_SECONDS)
