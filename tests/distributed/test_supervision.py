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


def followed(run: "subprocess.Popen[str]", on_event: Callable[[dict[str, Any], Events], object]) -> tuple[Events, int]:
    """Returns the events and the exit code of a run; `on_event` is called with each event and those up to it."""
    events: Events = []
    assert run.stdout
    for line in run.stdout:
        events.append(event := json.loads(line))
        on_event(event, events)
    return events, run.wait(timeout=240)


def killed_always(victim: int, *arguments: str) -> tuple[Events, int]:
    """Follows a supervised run, of which one process is killed as soon as it is up."""

    def kill(event: dict[str, Any], _: Events) -> None:
        if event["type"] == "EngineReady" and victim < len(event["hosts"]):
            os.kill(event["hosts"][victim]["pid"], signal.SIGKILL)

    return followed(train("--supervise", *arguments), kill)


def killed_once(
    steps: int, processes: int, victim: int, number: int = signal.SIGKILL, settings: Sequence[str] = SETTINGS
) -> tuple[Events, int]:
    """Follows a supervised run; one process gets a signal after the first checkpoint."""

    def kill(event: dict[str, Any], events: Events) -> None:
        if event["type"] == "CheckpointSaved" and len(named(events, "CheckpointSaved")) == 1:
            hosts = named(events, "EngineReady")[-1]["hosts"] or named(events, "EngineStarted")
            os.kill(hosts[victim]["pid"], number)

    options = (f"--steps={steps}", f"--processes={processes}", "--checkpoint-every=3", "--run=kept")
    return followed(train("--supervise", *options, settings=settings), kill)


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
    events, code = killed_once(40, processes, victim, settings=model.options)
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
    alone = train("--steps=40", settings=model.options)
    output, _ = alone.communicate(timeout=240)
    assert losses(events) == pytest.approx(losses([json.loads(line) for line in output.splitlines()]), rel=1e-5)


@pytest.mark.slow
def test_a_process_that_keeps_dying_is_left_out_and_the_mesh_shrinks(home: Path) -> None:
    """`data2-model4` fills all eight devices: four are left."""
    arguments = ("--steps=12", "--preset=data2-model4", "--switch=8:data8")
    events, code = killed_always(1, "--processes=2", "--min-processes=1", *arguments)
    assert code == 0, events[-5:]
    attempts = [event["attempt"] for event in named(events, "EngineStarted")]
    assert [(attempt["processes"], attempt["of"]) for attempt in attempts] == [(2, 2)] * SAME_FAULTS + [(1, 2)]
    ready = named(events, "EngineReady")[-1]
    assert len(ready["devices"]) == 4
    assert any("data2-model4 on 4 devices: mesh" in warning for warning in ready["warnings"]), ready["warnings"]
    meshes = [event["mesh"]["axes"] for event in events if event["type"] == "PresetCompiled"][-2:]
    assert meshes == [{"data": 1, "model": 4}, {"data": 4}]
    output, _ = train(*arguments).communicate(timeout=240)
    assert losses(events) == pytest.approx(losses([json.loads(line) for line in output.splitlines()]), rel=1e-5)


@pytest.mark.slow
def test_a_run_that_is_given_up_says_so(home: Path) -> None:
    """It has no checkpoint yet, and begins anew each time."""
    events, code = killed_always(1, "--processes=2", "--steps=12", "--run=anew")
    assert code == 1
    assert not [event for event in events if event["type"] in ("CheckpointSaved", "Restored")]
    said = run_directory.find("anew").log.read_text()
    assert said.count("resumes from the newest checkpoint, or from the start if there is none yet") == SAME_FAULTS - 1
    assert len(named(events, "EngineStarted")) == SAME_FAULTS
    (last,) = [event for event in events if event["type"] == "Failed" and event["by_supervisor"]]
    assert "process 1 ended 3 times in a row" in last["problems"][0]


def test_a_refused_run_is_not_started_again(home: Path) -> None:
    run = train("--supervise", "--steps=1", "--processes=3")
    _, said = run.communicate(timeout=240)
    assert run.returncode == 2
    assert "--devices 8 cannot be split evenly among 3 processes" in said
    assert not list((home / "state/shardtui/runs").iterdir()), "a run that could not begin is not kept"


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


@pytest.mark.parametrize(("steps", "is_repeated"), [((30, 30, 30), True), ((30, 31, 32), False)])
def test_a_process_that_is_stuck_in_the_same_step_is_named(steps: tuple[int, ...], is_repeated: bool) -> None:
    """The line of its loop may differ, and so may the last step that was reported before."""
    retries = Retries(20)
    for number, step in enumerate(steps):
        retries.note(1, Ending(kind="stuck", step=step, problems=[f"stuck in batch (lm.py:{number})"]), 20 + number)
    assert ("stuck in batch (lm.py:2)" in (retries.problem or "")) is is_repeated


def problem_after(retries: Retries, rank: int, step: int) -> str:
    retries.note(rank, KILLED, step)
    return retries.problem or ""


def test_a_fault_that_repeats_at_the_same_step_is_named_and_others_are_not() -> None:
    retries = Retries(20)
    assert [problem_after(retries, 1, 7) for _ in range(SAME_FAULTS - 1)] == [""] * (SAME_FAULTS - 1)
    assert "process 1 ended 3 times in a row after step 7" in problem_after(retries, 1, 7)
    assert [problem_after(retries, 1, step) for step in range(10)] == [""] * 10
    for step in (20, 30, 40):  # the supervisor does not know the step of a process that is stopped
        retries.note(1, Ending(kind="stuck", problems=[STOPPED]), step)
    assert not retries.problem


def test_restarts_are_limited() -> None:
    retries = Retries(2)
    assert [problem_after(retries, 0, step) for step in (1, 2)] == ["", ""]
    assert "restarted 2 times within an hour" in problem_after(retries, 0, 3)


HARMLESS = {getattr(signal, f"SIG{name}") for name in ["CHLD", "CONT", "URG", "WINCH", "STOP", "TSTP", "TTIN", "TTOU"]}
"""They do not end a process."""


def endings_of(home: Path, programs: Sequence[str]) -> list[Ending]:
    """Returns how an engine ends whose only process runs each of the shell's programs."""
    directory, found = run_directory.create(tiny_config(run="ends")), list[Ending]()
    for program in programs:
        engine = Engine(directory, {0: ["sh", "-c", program]}, {}, home / "stacks.txt")
        found += awaited(engine.ended).values()
    return found


def test_an_end_without_a_record_is_lost_whatever_its_status(home: Path) -> None:
    """No signal and no exit status means that the run was refused, or is over."""
    signals = [f"kill -{number} $$" for number in range(1, 65) if number not in HARMLESS]
    found = endings_of(home, [*signals, *(f"exit {status}" for status in range(0, 256, 5)), "exit 2"])
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


def test_what_a_supervisor_does_needs_a_supervisor(home: Path) -> None:
    run = train("--steps=1", "--restarts=3", "--fallback=fsdp")
    _, said = run.communicate(timeout=240)
    assert (run.returncode, said.count("add --supervise")) == (2, 2)


def test_a_signal_after_the_end_does_not_change_the_exit_code() -> None:
    lines = ("import os, signal", "from shardtui.engine.supervision.engine import SignalHandler")
    late = (
        "with SignalHandler(None): pass",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGINT)",
    )
    assert subprocess.run([sys.executable, "-c", "\n".join((*lines, *late))], timeout=60).returncode == 0
