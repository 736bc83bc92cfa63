"""Supervised runs resume from copies in host memory. Real processes and simulated hosts, on eight devices."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.copies.host_memory import LOCK, ROOT
from shardtui.engine.copies.part import SHARDS, parts_in
from shardtui.engine.supervision.supervisor import last_step
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import AnyCommand, Hello, Pause, SaveCheckpoint
from shardtui.engine.wire.framing import frame
from shardtui.engine.wire.lock import holder
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.cli.main import main

from ..conftest import SETTINGS, SHARDTUI
from ..simulated_hosts import Hosts, losses_by_step
from .test_host_supervision import alone, epochs, hosts
from .test_hosts import named, wait_for

__all__ = ["hosts"]
RUN = f"copied-{os.getpid()}"
EVERY = 5
AFTER = 10
"""Steps that a run makes after it has resumed, before it is stopped."""
SETTLE_SECONDS = 3.0
"""Time for a copy that has begun to end."""


def folders(run: str, *supervisors: int) -> list[Path]:
    """Returns where the hosts of a run keep copies; of those supervisors, if they are given."""
    found = list(ROOT.glob(f"shardtui-{run}-*"))
    return [folder for folder in found if not supervisors or supervisor_of(folder) in supervisors]


def supervisor_of(folder: Path) -> int:
    try:
        return int((folder / LOCK).read_text().partition(" ")[0] or 0)
    except FileNotFoundError:  # it has just ended
        return 0


def whole(*places: Path) -> int:
    """Returns the step of the newest copy of which all parts are in these folders; 0 if there is none."""
    parts = {part for folder in places for part in parts_in(folder)}
    steps = [part.step for part in parts if sum(other.copy == part.copy for other in parts) == part.processes]
    return max(steps, default=0)


@pytest.fixture(autouse=True)
def left_clean() -> Iterator[None]:
    """Deletes what killed supervisors leave."""
    yield
    for folder in [*folders(RUN), *folders("big")]:
        if holder(folder / LOCK) is None:
            shutil.rmtree(folder, ignore_errors=True)


class Train:
    """A supervised run of this machine, whose events are read as they come."""

    def __init__(self, *options: str) -> None:
        command = [*SHARDTUI, "train", "--json", *SETTINGS, "--supervise", f"--run={RUN}", "--steps=1000000", *options]
        self.run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []
        self.pids: list[int] = []

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        assert self.run.stdout
        for line in self.run.stdout:
            self.events.append(event := json.loads(line))
            if event["type"] == "EngineStarted":
                self.pids = [event["pid"]]
            if event["type"] == "EngineReady" and event["hosts"]:
                self.pids = [host["pid"] for host in event["hosts"]]
            if holds(event):
                return

    def resumed(self) -> dict[str, Any]:
        """Returns the receipt of the restore, after which the run makes some steps and is stopped."""
        self.until(lambda event: event["type"] == "Restored")
        restored = self.events[-1]
        self.until(lambda event: event["type"] == "StepDone" and event["step"] >= restored["step"] + AFTER)
        assert subprocess.run([*SHARDTUI, "stop", RUN], timeout=240, check=False).returncode == 0
        self.until(lambda _: False)
        assert self.run.stderr
        assert self.run.wait(timeout=240) == 0, self.run.stderr.read()
        wait_for(lambda: folders(RUN) == [])  # its supervisor ends a little later
        return restored


def stopped(run: Hosts, *ranks: int) -> dict[str, Any]:
    """Returns the receipt of the restore, after which the run makes some steps and is stopped on all hosts."""
    restored = wait_for(lambda: named(run.history(ranks[0]), "Restored"), 400)[-1]
    wait_for(lambda: max(losses_by_step(run.history(ranks[0]))) >= restored["step"] + AFTER)
    run.supervisors[ranks[0]].send_signal(signal.SIGTERM)
    assert [run.supervisors[rank].wait(timeout=240) for rank in ranks] == [0] * len(ranks), run.said(ranks[0])
    assert folders("big", *(run.supervisors[rank].pid for rank in ranks)) == []
    return restored


def same_as_alone(found: dict[int, float], restored: dict[str, Any], first: int) -> bool:
    """Checks the losses up to some steps after the restore, of which those from `first` on must be there."""
    last = restored["step"] + AFTER
    expected = alone(last)
    assert set(range(first, last + 1)) <= found.keys()
    shared = {step for step in found if step <= last}
    return {step: found[step] for step in shared} == pytest.approx({step: expected[step] for step in shared}, rel=1e-5)


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in named(events, "StepDone")}


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "victim"), [(1, 0), (2, 0), (4, 2)])
def test_a_run_without_checkpoints_resumes_from_memory(home: Path, processes: int, victim: int) -> None:
    """The directory of checkpoints is gone, too."""
    run = Train(f"--processes={processes}", f"--copy-every={EVERY}", "--preset=fsdp")
    run.until(lambda event: event["type"] == "TrainingStarted")
    directory, copied = run_directory.find(RUN), 0
    for _ in range(5):
        copied = wait_for(lambda before=copied: (step := whole(*folders(RUN))) > before and step)
        assert last_step(directory.events) >= copied
    shutil.rmtree(directory.path / "checkpoints")
    os.kill(run.pids[victim], signal.SIGKILL)
    restored = run.resumed()
    assert restored["from_memory"]
    assert restored["step"] >= copied
    assert same_as_alone(losses(run.events), restored, first=1)


@pytest.mark.slow
def test_a_run_that_can_save_no_more_ends_and_says_so(home: Path) -> None:
    run = Train(f"--copy-every={EVERY}")
    run.until(lambda event: event["type"] == "StepDone" and whole(*folders(RUN)) >= EVERY)
    checkpoints = run_directory.find(RUN).path / "checkpoints"
    shutil.rmtree(checkpoints)
    checkpoints.touch()
    os.kill(run.pids[0], signal.SIGKILL)
    run.until(lambda _: False)
    assert run.run.wait(timeout=240) == 1
    problems = [problem for event in named(run.events, "Failed") for problem in event["problems"]]
    assert f"{checkpoints}: cannot store checkpoints there" in problems[0]
    wait_for(lambda: folders(RUN) == [])


def send(directory: RunDirectory, *commands: AnyCommand) -> None:
    with socket.socket(socket.AF_UNIX) as viewer:
        viewer.connect(str(directory.socket))
        viewer.sendall(b"".join(map(frame, (Hello(), *commands))))
        viewer.recv(1)  # it is served


@pytest.mark.slow
def test_a_checkpoint_is_preferred_to_a_copy_that_is_no_newer(home: Path) -> None:
    run = Train(f"--copy-every={EVERY}")
    run.until(lambda event: event["type"] == "StepDone" and whole(*folders(RUN)) >= EVERY)
    send(run_directory.find(RUN), Pause(), SaveCheckpoint())
    run.until(lambda event: event["type"] == "CheckpointSaved")
    saved = run.events[-1]["step"]
    os.kill(run.pids[0], signal.SIGKILL)
    restored = run.resumed()
    assert (restored["step"], restored["from_memory"]) == (saved, False)


@pytest.mark.slow
def test_hosts_resume_without_one_from_what_its_neighbour_keeps(hosts: Callable[..., Hosts]) -> None:
    """That of process 0 is gone, and with it what it has reported since the history was copied last."""
    options = ("--preset=data2-model4", f"--copy-every={EVERY}", "--steps=1000000", "--min-processes=1")
    run = hosts(2, *options)
    gone, left = (run.supervisors[rank].pid for rank in (0, 1))
    wait_for(lambda: whole(*folders("big", left)) >= EVERY)
    copied = whole(*folders("big", left))
    run.kill(0)
    for folder in folders("big", gone):
        shutil.rmtree(folder)
    restored = stopped(run, 1)
    events = run.history(1)
    assert [(epoch["processes"], epoch["of"]) for epoch in epochs(events)] == [(2, 2), (1, 2)]
    assert restored["from_memory"]
    assert restored["step"] >= copied
    assert restored["from_devices"] == 8
    assert same_as_alone(losses_by_step(events), restored, first=restored["step"] + 1)


@pytest.mark.slow
def test_a_damaged_part_is_read_from_the_neighbour(hosts: Callable[..., Hosts], home: Path) -> None:
    """The run is paused, so that no newer copy takes its place."""
    run = hosts(2, "--preset=fsdp", f"--copy-every={EVERY}", "--steps=1000000")
    pids = [supervisor.pid for supervisor in run.supervisors.values()]
    wait_for(lambda: whole(*folders("big", *pids)) >= EVERY)
    send(RunDirectory(home / "host-0/shardtui/runs/big"), Pause())
    wait_for(lambda: named(run.history(0), "Paused"))
    time.sleep(SETTLE_SECONDS)
    (folder,) = folders("big", run.supervisors[1].pid)
    for part in parts_in(folder):
        if part.process == 1:
            flip_a_bit(folder / part.name / SHARDS)
    copied = whole(folder)
    os.kill(named(run.history(0), "EngineReady")[0]["hosts"][1]["pid"], signal.SIGKILL)
    restored = stopped(run, 0, 1)
    events = run.history(0)
    (problem,) = [problem for event in named(events, "CopyFailed") for problem in event["problems"]]
    assert f"what process 1 found in {folder}/{copied}-1-1-of-2, a part of the copy of step {copied}" in problem
    assert "is damaged and not used" in problem
    assert (restored["step"], restored["from_memory"]) == (copied, True)
    assert same_as_alone(losses_by_step(events), restored, first=1)


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "is_from_memory"), [((3,), True), ((1, 2), False)])
def test_four_hosts_lose_some(hosts: Callable[..., Hosts], lost: tuple[int, ...], is_from_memory: bool) -> None:
    """The batch of 8 does not divide by the six devices of three hosts: the third hands its part to two that go on.

    If two neighbours are lost at once, the first one's part is nowhere.
    """
    options = ("--preset=fsdp", f"--copy-every={EVERY}", "--steps=1000000", "--min-processes=1")
    run = hosts(4, *options, *(() if is_from_memory else ("--checkpoint-every=3",)))
    pids = {rank: supervisor.pid for rank, supervisor in run.supervisors.items()}
    left = [rank for rank in pids if rank not in lost]
    keep = left if is_from_memory else pids
    wait_for(lambda: whole(*folders("big", *(pids[rank] for rank in keep))) >= EVERY)
    wait_for(lambda: is_from_memory or named(run.history(0), "CheckpointSaved"))
    for rank in lost:
        run.kill(rank)
    for folder in folders("big", *(pids[rank] for rank in lost)):
        shutil.rmtree(folder)
    restored = stopped(run, *left)
    events = run.history(0)
    assert epochs(events)[-1]["processes"] == 2
    assert restored["from_memory"] is is_from_memory, named(events, "CopyFailed")
    problems = [problem for event in named(events, "CopyFailed") for problem in event["problems"]]
    assert any("lacks what process 1 of 4 had" in problem for problem in problems) is not is_from_memory
    assert same_as_alone(losses_by_step(events), restored, first=restored["step"] + 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--copy-every=5"], "--copy-every 5: only for a supervised run: add --supervise"),
        (["--copy-every=0", "--supervise"], "--copy-every 0: must be at least 1"),
    ],
)
def test_copies_need_a_supervisor(
    home: Path, options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SETTINGS, "--steps=1", *options]) == 2
    assert problem in capsys.readouterr().err
