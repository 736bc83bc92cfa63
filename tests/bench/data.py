"""Whether steps ever wait for data."""

import shutil
import subprocess
from statistics import median

from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import StepsDone

from ..conftest import SHARDTUI
from ..recorded import events_in
from .figure import Figure, at_least, at_most, ratios, timed
from .plain import Plain, config

REPEATS = 5
BATCHES = 300
STEPS = 40


def run() -> list[Figure]:
    plain = Plain(config())
    needed = [1 / plain.seconds(STEPS // 4) for _ in range(REPEATS)]
    offered = [BATCHES / timed(lambda: [plain.batches[number] for number in range(BATCHES)]) for _ in range(REPEATS)]
    against, waits = f"nano: {median(needed):.1f} batches/s", [_waited() for _ in range(REPEATS)]
    return [
        at_least(20, "batches of the loader ÷ batches that nano takes", ratios(offered, needed), "×", against),
        at_most(0.01, "wait for input ÷ step, nano", waits, "×", "the step's time"),
    ]


def _waited() -> float:
    command = [*SHARDTUI, "train", "--json", "--run=waiting", f"--steps={STEPS}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    directory = run_directory.find("waiting")
    done = [event for event in events_in(directory.events) if isinstance(event, StepsDone)]
    shutil.rmtree(directory.path)
    return sum(event.input_wait_seconds for event in done) / sum(sum(event.step_seconds) for event in done)
