"""Commands that are alone with their engine: where nobody reads them any more, it stops, and they say so."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.run_directory import find
from shardtui.tui.cli import headless

from ..conftest import PACED, SHARDTUI, killed_after
from .test_cli import run, started

ENDLESS = ("train", "--run=mine", "--steps=10000000", *PACED)
SAYS = "any more: saving after this step, then stopping\n"


def check_ended(process: subprocess.Popen[str], code: int = 1) -> int:
    """Returns the last step of the run, whose engine is gone."""
    assert process.wait(timeout=240) == code
    assert find("mine").holder() is None
    (found,) = json.loads(run("ls", "--json").stdout)["runs"]
    assert found["state"] == "stopped"
    return found["step"]


@pytest.mark.parametrize("lines", [0, *(pytest.param(lines, marks=pytest.mark.slow) for lines in (1, 60))])
def test_a_reader_of_stdout_that_goes_ends_the_run(home: Path, lines: int) -> None:
    """Before the engine listens, while it begins, and among its steps."""
    process = started(*ENDLESS, "--json")
    for _ in range(lines):
        process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    step = check_ended(process)
    assert errors.endswith(f"shardtui: nobody reads stdout {SAYS}")
    assert errors.count("\n") <= 2, "the devices are simulated, and that is all"
    assert find("mine").path.joinpath(f"checkpoints/{step}").is_dir() or not step


def test_a_reader_of_stderr_that_goes_while_nothing_is_written(home: Path) -> None:
    process = started(*ENDLESS)
    next(line for line in process.stderr if line.startswith("step "))
    process.stderr.close()
    check_ended(process)


def test_a_full_disk_for_stdout_ends_the_run(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*SHARDTUI, *ENDLESS, "--json"]
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.stderr.read().endswith(SAYS)
    check_ended(process)


@pytest.mark.core
def test_a_comparison_that_nobody_reads_ends(home: Path) -> None:
    process = started("compare", "dp", "tp", "--steps=1000000", *PACED)
    next(line for line in process.stderr if "training under" in line)
    process.stdout.close()
    assert "nobody reads stdout any more: stopping after this step" in process.stderr.read()
    assert process.wait(timeout=240) == 1
    assert run_directory.all_runs() == []


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.core)])
def test_an_interrupt_ends_the_run_after_its_step_and_is_kept_until_the_engine_listens(
    home: Path, trains: bool
) -> None:
    process = started(*ENDLESS, "--json")
    log = home / "state/shardtui/runs/mine/engine.log"
    while not log.exists():  # it is made as the engine is started
        assert process.poll() is None
    if trains:
        next(line for line in process.stdout if '"StepDone"' in line)
    process.send_signal(signal.SIGINT)
    with killed_after(240, process.pid):
        *_, last = process.stdout
        check_ended(process, 130)
    assert json.loads(last)["type"] == "RunEnded"


def test_a_throttle_is_due_at_first_and_once_its_seconds_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(headless.time, "monotonic", lambda: now)
    limited = headless.Throttle()
    assert [limited.is_due(), limited.is_due()] == [True, False]
    now += headless.PROGRESS_SECONDS + 0.1
    assert [limited.is_due(), limited.is_due()] == [True, False]
