"""One process of a supervised run is stopped or hangs: it must be named and ended, and the run must go on."""

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..hanging_model import HangingModel
from .row import Row
from .supervised import Event, Found, Trained, differing, events, spread, started, trained_alone

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


@dataclass
class Stuck(Found):
    named: list[float] = field(default_factory=list)
    """Seconds from each fault to the start of the next engine."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for runs of 2 and 4 processes: `times` of each, with two faults."""
    with tempfile.TemporaryDirectory(prefix="shardtui-stuck-") as folder:
        model = HangingModel(Path(folder))
        alone = trained_alone(_train(model, "stuck-alone"))
        for index, count in enumerate(COUNTS):
            found, chance = Stuck(), random.Random(count)
            for number in range(times):
                losses = _stuck(model, f"stuck-{count}-{number}", count, FAULTS[(number + index) % 2], chance, found)
                found.wrong += differing(losses, alone)
            yield _row(found, count)


def _row(found: Stuck, count: int) -> Row:
    kinds = ", ".join(f"{number} × {kind}" for kind, number in found.faults.items())
    named = f"each named; fault to next engine: {spread(found.named)}; to next step: {spread(found.gaps)}"
    return found.row(
        f"one process of {count} stopped, or hangs", f"{kinds}, {found.of_process_0} of process 0; {named}"
    )


def _stuck(
    model: HangingModel, name: str, count: int, faults: tuple[str, ...], chance: random.Random, found: Stuck
) -> dict[int, float]:
    """Returns the losses of a run with these faults, by step; adds the rest to `found`."""
    due, run = list(faults), Trained(found.wrong)
    pids, wanted = list[int](), 0
    began, fault, victim = 0.0, "", 0
    process = _train(model, name, "--supervise", f"--processes={count}", "--restarts=1000")
    for event in events(process):
        run.note(event)
        match event["type"]:
            case "EngineStarted":
                wanted = chance.randrange(FIRST, LATEST)
                if began:
                    found.named.append(time.monotonic() - began)
                    found.wrong += _misnamed(event, fault, victim, found.named[-1])
            case "EngineReady":
                pids = [host["pid"] for host in event["hosts"]]
            case "StepDone" if began and run.of_engine == 1:
                found.gaps.append(time.monotonic() - began)
                began = 0.0
            case _:
                pass
        if due and run.of_engine >= wanted and event["type"] == "StepDone" and not began:
            fault, victim, began = due.pop(0), chance.randrange(count), time.monotonic()
            found.faults[fault] += 1
            found.of_process_0 += victim == 0
            _cause(model, fault, victim, pids)
    if code := process.wait():
        found.wrong.append(f"it ended with {code}")
    found.wrong += [f"{name}: no {fault}" for fault in due]
    return run.losses


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


def _train(model: HangingModel, name: str, *options: str) -> "subprocess.Popen[str]":
    return started(*model.options, f"--run={name}", f"--steps={STEPS}", "--checkpoint-every=50", *options)
