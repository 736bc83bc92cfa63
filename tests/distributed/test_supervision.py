"""A supervised run resumes by itself when a process is lost. Real processes, each with a part of eight devices."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.base.processes import STOPPED, exit_words
from shardtui.engine.spec.attempt import Supervision
from shardtui.engine.spec.config import Restart
from shardtui.engine.supervision import boundary
from shardtui.engine.supervision.boundary import Boundary
from shardtui.engine.supervision.engine import SAME_FAULTS, Engine, Retries
from shardtui.engine.supervision.supervisor import supervise
from shardtui.engine.wire import lock, run_directory
from shardtui.engine.wire.ending import Ending

from ..conftest import SETTINGS, SHARDTUI, tiny_config
from ..hanging_model import HangingModel
from ..processes import awaited
from .test_hosts import named

FOUND = "Persistent compilation cache hit for 'jit_train_step'"
KILLED = Ending(kind="killed", problems=["its process was ended by SIGKILL"])


def train(*arguments: str, settings: Sequence[str] = SETTINGS) -> "subprocess.Popen[str]":
    command = [*SHARDTUI, "train", "--json", *settings, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events if event["type"] == "StepDone"}


Events = list[dict[str, Any]]


def followed(
    run: "subprocess.Popen[str]", on_event: Callable[[dict[str, Any], Events], object] = lambda *_: None
) -> tuple[Events, int]:
    """Returns the events and the exit code of a run; `on_event` is called with each event and those up to it."""
    events: Events = []
    assert run.stdout and run.stderr
    for line in run.stdout:
        events.append(event := json.loads(line))
        on_event(event, events)
    if code := run.wait(timeout=240):
        print(run.stderr.read())
    return events, code


def disturbed(run: "subprocess.Popen[str]", disturb: Callable[[Events], object]) -> tuple[Events, int]:
    """Returns the same; `disturb` is called with the events up to the first checkpoint."""

    def look(event: dict[str, Any], events: Events) -> None:
        if event["type"] == "CheckpointSaved" and len(named(events, "CheckpointSaved")) == 1:
            disturb(events)

    return followed(run, look)


def pid_of(events: Events, process: int) -> int:
    return (named(events, "EngineReady")[-1]["hosts"] or named(events, "EngineStarted"))[process]["pid"]


@pytest.mark.parametrize(
    ("processes", "victim"),
    [
        pytest.param(1, 0, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.core),
        pytest.param(2, 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_resumes_by_itself_with_equal_losses(
    home: Path, processes: int, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    model = HangingModel(home / "model")
    for step in range(40):
        model.be_slow(0, step, 0.05)

    options = ("--steps=40", f"--processes={processes}", "--checkpoint-every=3", "--run=kept")
    run = train("--supervise", *options, settings=model.options)
    events, code = disturbed(run, lambda events: os.kill(pid_of(events, victim), signal.SIGKILL))
    assert code == 0, events[-5:]
    attempts = [event["attempt"] for event in named(events, "EngineStarted")]
    assert [attempt["number"] for attempt in attempts] == [1, 2]
    assert attempts[1]["lost"] == {"process": victim, "why": exit_words(-signal.SIGKILL)}
    again = events.index(named(events, "EngineStarted")[1])
    saved = named(events[:again], "CheckpointSaved")[-1]["step"]
    restored = named(events, "Restored")[0]["step"]
    assert restored >= saved, "a committed checkpoint was lost"
    for process in range(processes):
        log = run_directory.find("kept").log_of(process).read_text()
        assert log.count(FOUND) == 1, f"process {process} loads its program in the second attempt"
    alone, _ = followed(train("--steps=40", settings=model.options))
    assert losses(events) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.slow
def test_a_process_that_keeps_dying_is_left_out_and_the_mesh_shrinks(home: Path) -> None:
    """`data2-model4` fills all eight devices: four are left."""
    arguments = ("--steps=12", "--preset=data2-model4", "--switch=8:data8")

    def kill(event: dict[str, Any], _: Events) -> None:
        if event["type"] == "EngineReady" and len(event["hosts"]) == 2:
            os.kill(event["hosts"][1]["pid"], signal.SIGKILL)

    events, code = followed(train("--supervise", "--processes=2", "--min-processes=1", *arguments), kill)
    assert code == 0, events[-5:]
    attempts = [event["attempt"] for event in named(events, "EngineStarted")]
    assert [(attempt["processes"], attempt["of"]) for attempt in attempts] == [(2, 2)] * SAME_FAULTS + [(1, 2)]
    ready = named(events, "EngineReady")[-1]
    assert len(ready["devices"]) == 4
    assert any("data2-model4 on 4 devices: mesh" in warning for warning in ready["warnings"]), ready["warnings"]
    meshes = [event["mesh"]["axes"] for event in events if event["type"] == "PresetCompiled"][-2:]
    assert meshes == [{"data": 1, "model": 4}, {"data": 4}]
    alone, _ = followed(train(*arguments))
    assert losses(events) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "says", "times"),
    [
        (["--supervise", "--processes=3"], "--devices 8 cannot be split evenly among 3 processes", 1),
        (["--restarts=3", "--fallback=fsdp"], "add --supervise", 2),
    ],
)
def test_a_run_that_cannot_begin_is_refused_and_not_kept(
    home: Path, arguments: list[str], says: str, times: int
) -> None:
    run = train("--steps=1", *arguments)
    _, said = run.communicate(timeout=240)
    assert run.returncode == 2
    assert said.count(says) >= times
    assert not list(home.glob("state/shardtui/runs/*"))


@pytest.mark.slow
def test_a_run_that_can_save_no_more_ends_and_says_so(home: Path) -> None:
    checkpoints = home / "state/shardtui/runs/full/checkpoints"

    def block(event: dict[str, Any], events: Events) -> None:
        if event["type"] == "StepDone" and event["step"] == 1:
            shutil.rmtree(checkpoints)
            checkpoints.touch()
            os.kill(named(events, "EngineStarted")[0]["pid"], signal.SIGKILL)

    events, code = followed(train("--supervise", "--run=full", "--steps=1000000"), block)
    assert code == 1
    problems = [problem for event in events if event["type"] == "Failed" for problem in event["problems"]]
    assert f"{checkpoints}: cannot store checkpoints there" in problems[0]


@pytest.mark.slow
def test_stopping_a_supervised_run_ends_its_supervisor(home: Path) -> None:
    run = train("--supervise", "--run=ended", "--steps=100000")
    assert run.stdout
    assert any('"StepDone"' in line for line in run.stdout)
    assert subprocess.run([*SHARDTUI, "stop", "ended"], timeout=240, check=False).returncode == 0
    events = [json.loads(line) for line in run.stdout]
    assert run.wait(timeout=240) == 0
    assert [event["type"] for event in events if event["type"].startswith("Engine")] == ["EngineStopped"]
    assert not run_directory.find("ended").is_supervised


def stuck(line: int, step: int) -> Ending:
    return Ending(kind="stuck", step=step, problems=[f"stuck in batch (lm.py:{line})"])


@pytest.mark.parametrize(
    ("faults", "problem"),
    [
        ([(KILLED, 7)] * SAME_FAULTS, "process 1 ended 3 times in a row after step 7"),
        ([(Ending(kind="lost", lost=["no sign of life"]), 7)] * SAME_FAULTS, "each time because: no sign of life: not"),
        ([(KILLED, step) for step in range(10)], ""),
        ([(KILLED, 7), (KILLED, 7), (KILLED, 8), (KILLED, 7)], ""),  # three, but not in a row
        # the line of its loop may differ, and so may the last step that was reported before
        ([(stuck(number, 30), 20 + number) for number in range(3)], "stuck in batch (lm.py:2)"),
        ([(stuck(number, 30 + number), 20 + number) for number in range(3)], ""),
        # the supervisor does not know the step of a process that is stopped
        ([(Ending(kind="stuck", problems=[STOPPED]), step) for step in (20, 30, 40)], ""),
    ],
)
def test_a_fault_that_repeats_at_the_same_step_is_named_and_others_are_not(
    faults: list[tuple[Ending, int]], problem: str
) -> None:
    retries = Retries(20)
    for ending, step in faults[:-1]:
        retries.note(1, ending, step)
        assert not retries.problem
    retries.note(1, *faults[-1])
    assert problem in (retries.problem or "")
    assert bool(retries.problem) is bool(problem)


HARMLESS = {getattr(signal, f"SIG{name}") for name in ["CHLD", "CONT", "URG", "WINCH", "STOP", "TSTP", "TTIN", "TTOU"]}
"""They do not end a process."""


def test_an_end_without_a_record_is_lost_whatever_its_status(home: Path) -> None:
    """No signal and no exit status means that the run was refused, or is over."""
    directory, found = run_directory.create(tiny_config(run="ends")), list[Ending]()
    signals = [f"kill -{number} $$" for number in range(1, 65) if number not in HARMLESS]
    for program in (*signals, *(f"exit {status}" for status in range(0, 256, 5)), "exit 2"):
        engine = Engine(directory, directory.config, {0: ["sh", "-c", program]}, has_logs=False)
        found += awaited(engine.ended).values()
    assert {ending.kind for ending in found} == {"killed", "lost"}
    assert all("its process " in ending.why for ending in found)


def test_an_engine_that_cannot_begin_is_tried_again_without_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, and signals are answered meanwhile."""
    monkeypatch.setattr(boundary, "FIRST_PAUSE_SECONDS", 0.01)
    count = 0

    def start() -> str:
        nonlocal count
        count += 1
        if count < 3:
            raise PermissionError(13, "Permission denied", "/run/sockets")
        if count == 3:
            raise ValueError("not foreseen")
        return "started"

    assert Boundary(lambda: 0).retried("start", start) == "started"
    said = capsys.readouterr().err
    assert said.count("/run/sockets: Permission denied: tried again until it works") == 1
    assert said.count("ValueError: not foreseen: tried again") == 1
    assert Boundary(lambda: count > 4).retried("start", lambda: [start()][1]) is None


def test_a_second_supervisor_is_refused(home: Path) -> None:
    directory = run_directory.create(tiny_config(run="two"))
    with lock.take(directory.supervisor_lock), pytest.raises(Exception, match="has a supervisor already"):
        supervise(str(directory.path), Restart(), Supervision())


LATE = """
import os, signal
from shardtui.engine.supervision.engine import SignalHandler
with SignalHandler(): pass
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_signal_after_the_end_does_not_change_the_exit_code() -> None:
    assert subprocess.run([sys.executable, "-c", LATE], timeout=60).returncode == 0
