"""A process that is stopped or hangs is named and ended, and the run goes on. Real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.base import processes
from shardtui.engine.base.processes import STOPPED, is_stopped
from shardtui.engine.base.stacks import DUMP_SIGNAL, append_stacks
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.supervision import engine
from shardtui.engine.supervision.engine import SAME_FAULTS, ProcessHealth

from ..hanging_model import HangingModel
from ..processes import awaited
from ..simulated_hosts import Hosts
from .test_host_supervision import attempts, hosts
from .test_hosts import history, named
from .test_supervision import Events, disturbed, followed, pid_of, train

__all__ = ["hosts"]


@pytest.fixture
def model(home: Path) -> HangingModel:
    return HangingModel(home / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "victim", "how", "says"),
    [
        (2, 1, "sleep", "stuck in hang (lm.py:"),
        (1, 0, "native", "native code that keeps Python from running"),
        (2, 0, "SIGSTOP", STOPPED),
    ],
)
def test_a_process_that_is_stuck_is_ended_and_the_run_goes_on(
    home: Path, model: HangingModel, processes: int, victim: int, how: str, says: str
) -> None:
    def begin(events: Events) -> None:
        if how == "SIGSTOP":
            os.kill(pid_of(events, victim), signal.SIGSTOP)
        else:
            model.hang_once(victim, how)

    options = ("--supervise", f"--processes={processes}", "--steps=250", "--checkpoint-every=100")
    run = train("--run=stuck", *options, settings=model.options)
    events, code = disturbed(run, begin)
    assert code == 0, events[-5:]
    lost = [event["attempt"]["lost"] for event in named(events, "EngineStarted")[1:]]
    assert [(each["process"], says in each["why"]) for each in lost] == [(victim, True)], lost
    if how == "SIGSTOP":
        return
    stacks = (home / "state/shardtui/runs/stuck/stacks.txt").read_text()
    assert " in hang\n" in stacks
    if how == "sleep":
        assert lost[0]["why"].endswith(f"; process {1 - victim} was waiting for it")
        assert stacks.count(" in hang\n") == 1
        assert all(f"process {other} on" in stacks for other in range(processes))


@pytest.mark.slow
def test_a_step_that_hangs_each_time_is_given_up(home: Path, model: HangingModel) -> None:
    """Steps are reported before it, or one may take five minutes."""
    for step in (3, 6):
        model.be_slow(0, step, 1.0)
    model.hang_always(0, 10)
    events, code = followed(train("--run=stuck", "--supervise", "--steps=100", settings=model.options))
    assert code == 1
    assert len(named(events, "EngineStarted")) == SAME_FAULTS
    assert not named(events, "CheckpointSaved") + named(events, "Restored"), "it begins anew each time"
    said = (home / "state/shardtui/runs/stuck/engine.log").read_text()
    assert said.count("resumes from the newest checkpoint, or from the start if there is none yet") == SAME_FAULTS - 1
    (last,) = [event for event in named(events, "Failed") if event["by_supervisor"]]
    assert "process 0 ended 3 times in a row after step 10" in last["problems"][0]


@pytest.mark.slow
def test_a_run_without_a_supervisor_is_reported_and_goes_on(home: Path, model: HangingModel) -> None:
    options = ("--processes=2", "--steps=1000000", "--checkpoint-every=20", "--stop-timeout=3")
    run = train("--run=stuck", *options, settings=model.options)
    awaited(lambda: named(history(home, "stuck"), "CheckpointSaved"))
    model.hang_once(1)
    (stall,) = awaited(lambda: [event for event in named(history(home, "stuck"), "Stalled") if event["verdict"]])
    assert stall["verdict"].startswith("process 1 is stuck in hang (lm.py:")
    assert stall["verdict"].endswith("; process 0 was waiting for it")
    measured = named(history(home, "stuck"), "HostsMeasured")[-1]["hosts"]
    assert [host["verdict"] for host in measured] == ["waiting", "stuck"]
    awaited(lambda: Path(stall["stacks"]).read_text().count("pid ") == 2)
    time.sleep(5)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=240) == 1


@pytest.mark.slow
def test_hosts_go_on_after_a_process_that_is_stuck(model: HangingModel, hosts: Callable[..., Hosts]) -> None:
    run = hosts(2, *model.options, "--checkpoint-every=100", "--steps=250", settings=())
    awaited(lambda: named(run.history(0), "CheckpointSaved"))
    model.hang_once(1)
    assert [supervisor.wait(timeout=240) for supervisor in run.supervisors.values()] == [0, 0], run.said(0)
    _, second = attempts(run.history(0))
    assert (second["processes"], second["lost"]["process"]) == (2, 1)
    assert "stuck in hang (lm.py:" in second["lost"]["why"]
    stacks = (run.folder / "shared/big/supervisors/stacks.txt").read_text()
    assert stacks.count("pid ") == 2, "of both hosts in one file"


@pytest.fixture
def child() -> Any:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def problem_of(watched: ProcessHealth, seconds: float) -> str | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if problem := watched.problem():
            return problem
        time.sleep(0.01)
    return None


def test_a_stopped_process_has_a_problem(
    tmp_path: Path, child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.1)
    watched = ProcessHealth(child.pid, tmp_path / "beat")
    assert problem_of(watched, 0.3) is None
    child.send_signal(signal.SIGSTOP)
    assert problem_of(watched, 60) == STOPPED
    child.send_signal(signal.SIGCONT)
    awaited(lambda: not is_stopped(child.pid))
    assert problem_of(watched, 0.3) is None, "the time before does not count"


LOCKS = """
import ctypes, os, sys
from shardtui.engine.base.stacks import dump_on_signal
beat = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
dump_on_signal(beat)
def locks():
    os.pwrite(beat, sys.argv[2].encode(), 0)
    mutex, native = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)
locks()
"""


def test_a_supervisor_sees_at_once_whether_a_process_is_in_a_step(tmp_path: Path) -> None:
    """Python may never run again in it: a hang right after a checkpoint took five minutes to be found."""
    cluster, health = Cluster(), ProcessHealth(os.getpid(), tmp_path / "beat")
    with health.beat.open("wb") as file:
        cluster.beat = file.fileno()
        with cluster.step():
            with cluster.step():
                pass
            assert health.written() == "step"
        assert health.written() == "else"


@pytest.mark.parametrize(("where", "is_stuck"), [("step", True), ("else", False)])
def test_native_code_that_keeps_python_from_running_is_a_problem_in_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, is_stuck: bool
) -> None:
    monkeypatch.setattr(engine, "SILENT_SECONDS", 0.1)
    beat = tmp_path / "beat"
    with subprocess.Popen([sys.executable, "-c", LOCKS, str(beat), where]) as process:
        watched = ProcessHealth(process.pid, beat)
        awaited(lambda: watched.written() == where)
        assert problem_of(watched, 60 if is_stuck else 1) == (
            "stuck for 0 s in native code that keeps Python from running" if is_stuck else None
        )
        process.send_signal(DUMP_SIGNAL)
        awaited(lambda: " in locks\n" in watched.written())
        assert process.poll() is None
        process.kill()


def test_stacks_of_several_writers_stand_one_after_the_other(tmp_path: Path) -> None:
    for number in range(2):
        append_stacks(tmp_path / "stacks.txt", f"process {number}")
    first, second = (tmp_path / "stacks.txt").read_text().split(" process 1\n")
    assert " process 0\n" in first
    for part in (first, second):
        assert "in test_stacks_of_several_writers_stand_one_after_the_other" in part
