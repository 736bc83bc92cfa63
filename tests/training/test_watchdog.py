"""A run that does not stop in time is ended and reports where it was."""

import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shardtui.engine.training.training_thread import StallTimer, TrainingThread
from shardtui.engine.training.watchdog import Watchdog
from shardtui.engine.wire.events import CheckpointSaved, Restored, StepsDone

from ..conftest import SHARDTUI
from ..distributed.test_hosts import Engines, coordinator, engines, history, named, pair
from ..processes import awaited

__all__ = ["coordinator", "engines"]

MODEL = """
import time
import jax, jax.numpy as jnp
from flax import nnx

{at_import}

class Lm(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(256, 256, rngs=rngs)

    def __call__(self, tokens):
        {in_call}
        return self.table(tokens)

def lm(rngs: nnx.Rngs):
    return Lm(rngs)
"""
BATCHES = """
def loss(model, batch):
    return model(batch).mean()

def batch(step, batch_size):
    if step == {step} and jax.process_index() == {process}:
        {what}
    return jnp.zeros((batch_size, 4), int)
"""
SLEEPING_BATCH = BATCHES.format(step=30, process=0, what="time.sleep(1000)")


def model(folder: Path, at_import: str = "", in_call: str = "pass", more: str = "") -> str:
    file = folder / "lm.py"
    file.write_text(MODEL.format(at_import=at_import, in_call=in_call) + more)
    return f"--model={file}:lm"


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [*SHARDTUI, "train", "--json", "--steps=1000000", "--run=slow", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(home: Path, process: "subprocess.Popen[str]", seconds: float = 240) -> tuple[str, dict[str, Any]]:
    try:
        _, stderr = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return stderr, history(home, "slow")[-1]


def test_a_run_that_went_back_has_only_the_steps_before() -> None:
    watchdog: Any = SimpleNamespace(_stall=StallTimer(), _hangs=SimpleNamespace(thread=TrainingThread()))
    back = Restored(4, "dp", 8, "dp", arrays=1, seconds=0.1, digests_equal=True, rolled_back=[8])
    for event in (StepsDone(10, [1.0], [0.1], None), CheckpointSaved(8, 1, 1, 0.1), back):
        Watchdog.note(watchdog, event)
    assert (watchdog.done, watchdog._saved) == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "after", "place"),
    [
        ({"at_import": "time.sleep(1000)"}, "EngineStarted", "<module> (lm.py:6)"),
        ({"in_call": "jax.debug.callback(lambda: time.sleep(1000))"}, "TrainingStarted", "<lambda> (lm.py:13)"),
    ],
)
def test_a_model_that_never_returns_ends(home: Path, code: dict[str, str], after: str, place: str) -> None:
    process = start(model(home, **code), "--stop-timeout=3", "--seq-len=16", "--batch-size=8")
    awaited(lambda: named(history(home, "slow"), after))
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    stderr, last = ended(home, process)
    assert (process.returncode, last["type"]) == (1, "Failed")
    assert f"the training thread was in {place}" in last["problems"][0]
    assert ("no step had been trained" in last["problems"][0]) is ("at_import" in code)
    assert last["problems"][0] in stderr


@pytest.mark.slow
def test_a_batch_that_sleeps_is_reported_with_the_lost_steps(home: Path) -> None:
    process = start(model(home, more=SLEEPING_BATCH), "--batch-size=8", "--stop-timeout=3", "--checkpoint-every=4")
    awaited(lambda: named(history(home, "slow"), "CheckpointSaved"))
    time.sleep(3)
    stop = subprocess.run([*SHARDTUI, "stop", "slow"], capture_output=True, text=True, timeout=240)
    stderr, last = ended(home, process)
    assert (process.returncode, stop.returncode) == (1, 1), stop.stderr
    problem = last["problems"][0]
    assert "batch (lm.py:" in problem
    saved = named(history(home, "slow"), "CheckpointSaved")[-1]["step"]
    assert f"all steps after step {saved}, the last checkpoint, are lost" in problem
    assert "ended 3 s after the request to stop" in problem
    assert "train --resume slow" in stderr
    resumed = subprocess.run(
        [*SHARDTUI, "train", "--json", "--resume=slow", "--steps=30"], capture_output=True, timeout=240
    )
    assert b'"Restored"' in resumed.stdout


@pytest.mark.parametrize(
    ("process", "what", "problem"),
    [
        pytest.param(
            *(1, "raise ValueError('no data')", "batch(5) of lm.py: ValueError: no data (lm.py:24)"),
            marks=pytest.mark.core,
        ),
        pytest.param(
            *(0, "batch_size = 7", "batch(5) is int32 [7, 4], batch(0) was int32 [8, 4]"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_batch_that_fails_in_one_process_ends_the_run(
    home: Path, engines: Engines, coordinator: str, process: int, what: str, problem: str
) -> None:
    both = start_two(home, engines, coordinator, process, what)
    assert [engine.wait(timeout=240) for engine in both] == [1, 1]
    (found,) = named(history(home, "hosts"), "Failed")[-1]["problems"][:1]
    assert problem in found
    assert process == 0 or "process 1 (" in found


@pytest.mark.slow
def test_a_batch_that_blocks_is_reported_until_a_signal(home: Path, engines: Engines, coordinator: str) -> None:
    both = start_two(home, engines, coordinator, 1, "time.sleep(1000)", "--stop-timeout=2")
    place = "batch (lm.py:24) on process 1"
    awaited(lambda: [stall for stall in named(history(home, "hosts"), "Stalled") if stall["where"] == place])
    both[1].send_signal(signal.SIGTERM)
    assert both[0].wait(timeout=240) == 1
    assert both[1].wait(timeout=240) != 0, "process 0 is gone"
    assert "batch (lm.py:24)" in named(history(home, "hosts"), "Failed")[-1]["problems"][0]


def start_two(
    home: Path, engines: Engines, coordinator: str, process: int, what: str, *more: str
) -> "list[subprocess.Popen[str]]":
    batches = BATCHES.format(step=5, process=process, what=what)
    return pair(engines, coordinator, model(home, more=batches), *more, settings=["--batch-size=8"])
