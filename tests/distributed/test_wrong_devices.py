"""A bit flips in a supervised run: it goes on without the device, or without its process."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..conftest import SHARDTUI
from .test_hosts import named
from .test_supervision import losses

MODEL = """
import sys
from pathlib import Path

sys.path.insert(0, "{root}")

import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from shardtui.engine.training.loop import Loop
from tests.flips import Flip, flipped

dispatch = Loop._dispatch_step

class Net(nnx.Module):
    def __init__(self, flips: bool = True, *, rngs):
        self.layer = nnx.Linear(16, 16, rngs=rngs)
        if flips:
            Loop._dispatch_step = dispatch_and_flip

def loss(model, batch):
    return jnp.mean((model.layer(batch["x"]) - batch["y"]) ** 2)

def batch(step, batch_size):
    chance = np.random.default_rng(step)
    return {{name: chance.standard_normal((batch_size, 16), np.float32) for name in ("x", "y")}}

def dispatch_and_flip(loop):
    is_traced = dispatch(loop)
    done = Path(f"{folder}/flipped-{{jax.process_index()}}")
    if loop.at.begun == 6 and not done.exists():
        done.touch()
        loop.at.state = flipped(loop.at.state, Flip(leaf=1, device=5, element=0, bit=20))
    return is_traced
"""


def train(home: Path, *arguments: str) -> tuple[list[dict[str, Any]], int, str]:
    """Returns the events, the exit code and what was said of a run in whose device 5 a bit flips after step 6."""
    file = home / "net.py"
    file.write_text(MODEL.format(root=Path(__file__).parents[2], folder=home))
    command = [*SHARDTUI, "train", "--json", f"--model={file}:Net", "--batch-size=8", "--steps=16", *arguments]
    command += ["--checkpoint-every=5", "--check-devices=4"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return [json.loads(line) for line in run.stdout.splitlines()], run.returncode, run.stderr


@pytest.fixture
def plain(home: Path) -> dict[int, float]:
    events, code, said = train(home, "--set=flips=false")
    assert (code, named(events, "DevicesDiffer")) == (0, []), said
    return losses(events)


@pytest.mark.slow
def test_a_process_goes_on_without_the_device(home: Path, plain: dict[int, float]) -> None:
    """The batch of 8 does not divide by 7 devices."""
    events, code, said = train(home, "--supervise")
    assert code == 0, said
    (found,) = named(events, "DevicesDiffer")
    assert (found["step"], [device["id"] for device in found["devices"]]) == (8, [5])
    attempts = [event["attempt"] for event in named(events, "EngineStarted")]
    assert [attempt["left_out"] for attempt in attempts] == [[], [5]]
    assert "device 5 (cpu, process 0 on" in attempts[1]["lost"]["why"]
    ready = named(events, "EngineReady")[-1]
    assert [device["id"] for device in ready["devices"]] == [0, 1, 2, 3]
    assert "without device 5, which was wrong" in ready["warnings"]
    assert [event["step"] for event in named(events, "Restored")] == [5]
    assert losses(events) == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, 2])
def test_several_processes_go_on_without_that_of_the_device_or_all_start_again(
    home: Path, plain: dict[int, float], least: int
) -> None:
    events, code, said = train(home, "--supervise", "--processes=2", f"--min-processes={least}")
    assert code == 0, said
    (found,) = named(events, "DevicesDiffer")
    assert [device["process"] for device in found["devices"]] == [1]
    attempts = [event["attempt"] for event in named(events, "EngineStarted")]
    assert [(attempt["processes"], attempt["left_out"]) for attempt in attempts] == [(2, []), (least, [])]
    assert losses(events) == pytest.approx(plain, rel=1e-5)
