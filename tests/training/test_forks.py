"""A user's model that forks a child: it outlives the run, and nothing may wait for it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .. import least_model
from ..conftest import SHARDTUI
from ..tui.test_cli import run

FORK = """
import os, pathlib, time

if not hasattr(jax, "has_forked"):
    jax.has_forked = True
    if os.fork() == 0:
        (pathlib.Path({children!r}) / str(os.getpid())).touch()
        time.sleep(600)
        os._exit(0)
"""
SETTINGS = ("--seq-len=16", "--batch-size=8")


@pytest.fixture
def model(home: Path) -> Iterator[str]:
    children = home / "children"
    children.mkdir()
    file = home / "forking.py"
    file.write_text(Path(least_model.__file__).read_text() + FORK.format(children=str(children)))
    yield f"--model={file}:LeastModel"
    left = [int(child.name) for child in children.iterdir()]
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert left, "the model has not forked"


def states() -> dict[str, str]:
    return {each["run"]: each["state"] for each in json.loads(run("ls", "--json").stdout)["runs"]}


def test_a_run_ends_and_resumes_while_its_child_lives(model: str) -> None:
    done = run("train", "--run=forked", "--steps=3", model, *SETTINGS)
    assert done.returncode == 0, done.stderr
    assert states() == {"forked": "stopped"}
    again = run("train", "--resume=forked", "--steps=5", "--json")
    assert again.returncode == 0, again.stderr
    steps = [json.loads(line)["step"] for line in again.stdout.splitlines() if '"StepDone"' in line]
    assert steps == [4, 5]


def test_the_child_of_a_killed_engine_does_not_hold_its_lock(model: str, home: Path) -> None:
    command = [*SHARDTUI, "train", "--json", "--run=forked", "--steps=1000000", "--checkpoint-every=1", model]
    command += SETTINGS
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    pid = next(event["pid"] for line in process.stdout if (event := json.loads(line))["type"] == "EngineStarted")
    next(line for line in process.stdout if '"CheckpointSaved"' in line)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert (process.returncode, "ended by SIGKILL" in errors, "Traceback" in errors) == (1, True, False)
    assert "`shardtui train --resume forked` resumes from the checkpoint of step" in errors
    assert states() == {"forked": "crashed"}


def test_commands_do_not_wait_for_a_child(model: str) -> None:
    presets = run("presets", "--json", model, *SETTINGS)
    plan = run("plan", "--topology=v5p:2x2x1", "--estimate", "--preset=dp", "--json", model, *SETTINGS)
    assert (presets.returncode, plan.returncode) == (0, 0), presets.stderr + plan.stderr
    assert json.loads(presets.stdout)["devices"] == 8
    assert [row["preset"] for row in json.loads(plan.stdout)["rows"]] == ["dp"]
