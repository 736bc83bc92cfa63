"""Whether steps ever wait for data."""

import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import jax
import msgspec
import numpy as np
from shardtui.engine.data.batches import Batches
from shardtui.engine.training.inputs import text_inputs
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import StepsDone

from ..conftest import SHARDTUI
from .figure import Figure, at_least, at_most
from .plain import Plain, config

REPEATS = 5
BATCHES = 300
STEPS = 40
TOKENS = 50_000_000
"""In the token file: 100 MB."""


def run() -> list[Figure]:
    """Measures the loader's rate compared with nano's, and the input wait of a run, for text and for a token file."""
    plain = Plain(config())
    needed = [_steps_per_second(plain) for _ in range(REPEATS)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 256, TOKENS, np.uint16).tofile(path)
        stored = text_inputs(msgspec.structs.replace(plain.task.config, data=str(path))).batches
        return [
            *_figures("", needed, plain.batches, []),
            *_figures(", of a token file", needed, stored, [f"--data={path}"]),  # type: ignore[arg-type]
        ]


def _figures(of: str, needed: list[float], batches: Batches, options: list[str]) -> list[Figure]:
    offered = [_batches_per_second(batches) for _ in range(REPEATS)]
    return [
        at_least(
            20,
            f"batches of the loader{of} ÷ batches that nano takes",
            [loader / steps for loader, steps in zip(offered, needed, strict=True)],
            "×",
            f"nano: {median(needed):.1f} batches/s",
        ),
        at_most(
            0.01,
            f"wait for input{of} ÷ step, nano",
            [_waited(options) for _ in range(REPEATS)],
            "×",
            "the step's time",
        ),
    ]


def _steps_per_second(plain: Plain) -> float:
    state, batch = plain.state(), plain.batch(0)
    jax.block_until_ready((state, batch))
    began = time.perf_counter()
    for _ in range(STEPS // 4):
        state, loss = plain.step(state, batch)
    loss.block_until_ready()
    return STEPS // 4 / (time.perf_counter() - began)


def _batches_per_second(batches: Batches) -> float:
    began = time.perf_counter()
    for number in range(BATCHES):
        batches[number]
    return BATCHES / (time.perf_counter() - began)


def _waited(options: list[str]) -> float:
    command = [*SHARDTUI, "train", "--json", "--run=waiting", f"--steps={STEPS}", *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    directory = run_directory.find("waiting")
    done = [event for events in LogReader(directory.events).read() for event in events if isinstance(event, StepsDone)]
    shutil.rmtree(directory.path)
    return sum(event.input_wait_seconds for event in done) / sum(sum(event.step_seconds) for event in done)
