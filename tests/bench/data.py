"""Whether steps ever wait for data."""

import shutil
import subprocess
import time
from statistics import median

import jax
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import StepsDone

from ..conftest import SHARDTUI
from .figure import Figure, at_least, at_most
from .plain import Plain, config

REPEATS = 5
BATCHES = 300
STEPS = 40


def run() -> list[Figure]:
    """Measures the loader's rate compared with nano's, and the input wait of a run."""
    plain = Plain(config())
    needed, offered = ([measure(plain) for _ in range(REPEATS)] for measure in (_steps_per_second, _batches_per_second))
    ratios = [loader / steps for loader, steps in zip(offered, needed, strict=True)]
    against, waits = f"nano: {median(needed):.1f} batches/s", [_waited() for _ in range(REPEATS)]
    return [
        at_least(20, "batches of the loader ÷ batches that nano takes", ratios, "×", against),
        at_most(0.01, "wait for input ÷ step, nano", waits, "×", "the step's time"),
    ]


def _steps_per_second(plain: Plain) -> float:
    state, batch = plain.state(), plain.batch(0)
    jax.block_until_ready((state, batch))
    began = time.perf_counter()
    for _ in range(STEPS // 4):
        state, loss = plain.step(state, batch)
    loss.block_until_ready()
    return STEPS // 4 / (time.perf_counter() - began)


def _batches_per_second(plain: Plain) -> float:
    began = time.perf_counter()
    for number in range(BATCHES):
        plain.batches[number]
    return BATCHES / (time.perf_counter() - began)


def _waited() -> float:
    command = [*SHARDTUI, "train", "--json", "--run=waiting", f"--steps={STEPS}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    directory = run_directory.find("waiting")
    done = [event for events in LogReader(directory.events).read() for event in events if isinstance(event, StepsDone)]
    shutil.rmtree(directory.path)
    return sum(event.input_wait_seconds for event in done) / sum(sum(event.step_seconds) for event in done)
