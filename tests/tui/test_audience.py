"""Commands that are alone with their engine: where nobody reads them any more, it stops, and they say so."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.run_directory import find
from shardtui.tui.cli import headless

from ..conftest import SETTINGS, SHARDTUI
from .test_cli import run, started

ENDLESS = ("train", "--run=mine", "--steps=10000000", *SETTINGS)
SAYS = "any more: saving after this step, then stopping\n"


@pytest.fixture(autouse=True)
def left(home: Path) -> Iterator[None]:
    """Engines that a failure leaves are killed."""
    yield
    for directory in run_directory.all_runs():
        if (holder := directory.holder()) and holder.is_here:
            os.kill(holder.pid, signal.SIGKILL)


def ended() -> dict[str, object]:
    """The run, whose engine is gone."""
    assert find("mine").holder() is None
    (found,) = json.loads(run("ls", "--json").stdout)["runs"]
    return found


@pytest.mark.parametrize(
    "lines", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.slow)]
)
def test_a_reader_of_stdout_that_goes_ends_the_run(home: Path, lines: int) -> None:
    """Before the engine listens, while it begins, and among its steps."""
    process = started(*ENDLESS, "--json")
    assert process.stdout and process.stderr
    for _ in range(lines):
        process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=240) == 1
    assert errors.endswith(f"shardtui: nobody reads stdout {SAYS}")
    assert errors.count("\n") <= 2, "the devices are simulated, and that is all"
    found = ended()
    assert found["state"] == "stopped"
    assert find("mine").path.joinpath(f"checkpoints/{found['step']}").is_dir() or not found["step"]


def test_a_reader_of_stderr_that_goes_while_nothing_is_written(home: Path) -> None:
    process = started(*ENDLESS)
    assert process.stderr
    next(line for line in process.stderr if line.startswith("step "))
    process.stderr.close()
    assert process.wait(timeout=240) == 1
    assert ended()["state"] == "stopped"


def test_a_full_disk_for_stdout_ends_the_run(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [*SHARDTUI, *ENDLESS, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=240
        )
    assert process.returncode == 1
    assert process.stderr.endswith(SAYS)
    assert ended()["state"] == "stopped"


@pytest.mark.core
def test_a_comparison_that_nobody_reads_ends(home: Path) -> None:
    process = started("compare", "dp", "tp", "--steps=1000000", *SETTINGS)
    assert process.stdout and process.stderr
    next(line for line in process.stderr if "training under" in line)
    process.stdout.close()
    assert "nobody reads stdout any more: stopping after this step" in process.stderr.read()
    assert process.wait(timeout=240) == 1
    assert run_directory.all_runs() == []


def test_an_interrupt_before_the_engine_listens_is_kept_for_it(home: Path) -> None:
    process = subprocess.Popen([*SHARDTUI, *ENDLESS, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    log = home / "state/shardtui/runs/mine/engine.log"
    while not log.exists():  # it is made as the engine is started
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=240) == 130
    assert ended()["state"] == "stopped"


def test_a_throttle_is_due_at_first_and_once_its_seconds_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(headless.time, "monotonic", lambda: now)
    limited = headless.Throttle()
    assert [limited.is_due(), limited.is_due()] == [True, False]
    now += headless.PROGRESS_SECONDS + 0.1
    assert [limited.is_due(), limited.is_due()] == [True, False]
