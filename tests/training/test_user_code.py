"""User code that fails or blocks in one of several processes: every process ends, or reports where it blocks."""

import signal
import subprocess
from pathlib import Path

import pytest

from ..distributed.test_hosts import Engines, coordinator, engines, history, named, pair, wait_for

__all__ = ["coordinator", "engines"]

MODEL = """
import time
import jax, jax.numpy as jnp
from flax import nnx

class Lm(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(256, 8, rngs=rngs)

def lm(rngs: nnx.Rngs):
    return Lm(rngs)

def loss(model, batch):
    return model.table(batch).mean()

def batch(step, batch_size):
    if step == 5 and jax.process_index() == {process}:
        {what}
    return jnp.zeros((batch_size, 4), int)
"""


@pytest.mark.parametrize(
    ("process", "what", "problem"),
    [
        pytest.param(
            1,
            "raise ValueError('no data')",
            "batch(5) of lm.py: ValueError: no data (lm.py:18)",
            marks=pytest.mark.core,
        ),
        pytest.param(
            0, "batch_size = 7", "batch(5) is int32 [7, 4], batch(0) was int32 [8, 4]", marks=pytest.mark.slow
        ),
    ],
)
def test_a_batch_that_fails_in_one_process_ends_the_run(
    home: Path, engines: Engines, coordinator: str, process: int, what: str, problem: str
) -> None:
    both = _start(home, engines, coordinator, process, what)
    assert [engine.wait(timeout=240) for engine in both] == [1, 1]
    problems = named(history(home, "hosts"), "Failed")[-1]["problems"]
    assert problem in problems[0]
    assert process == 0 or "process 1 (" in problems[0]
    assert both[1 - process].stderr is not None


@pytest.mark.slow
def test_a_batch_that_blocks_is_reported_and_a_signal_ends_the_run(
    home: Path, engines: Engines, coordinator: str
) -> None:
    both = _start(home, engines, coordinator, 1, "time.sleep(1000)", "--stop-timeout=2")
    place = "batch (lm.py:18) on process 1"
    wait_for(lambda: [stall for stall in named(history(home, "hosts"), "Stalled") if stall["where"] == place])
    both[1].send_signal(signal.SIGTERM)
    assert both[0].wait(timeout=240) == 1
    assert both[1].wait(timeout=240) != 0, "process 0 is gone"
    assert "batch (lm.py:18)" in named(history(home, "hosts"), "Failed")[-1]["problems"][0]


def _start(
    home: Path, engines: Engines, coordinator: str, process: int, what: str, *more: str
) -> "list[subprocess.Popen[str]]":
    file = home / "lm.py"
    file.write_text(MODEL.format(process=process, what=what))
    return pair(engines, coordinator, f"--model={file}:lm", *more, settings=["--batch-size=8"])
