"""Several real processes on this machine train together, each with a part of the eight simulated devices."""

import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from shardtui.engine.distributed.agreement import differences, facts
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.jax_cluster import JaxCluster
from shardtui.engine.distributed.seal import Seal
from shardtui.engine.spec.config import Restart
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.hosts import HostInfo
from shardtui.tui.cli.main import main

from ..conftest import LEAST, SETTINGS, SHARDTUI, tiny_config
from ..processes import awaited
from ..schemas import checked_lines

Engines = Callable[..., "subprocess.Popen[str]"]
HOSTS = [HostInfo(process, 2, f"host-{process}", 100 + process) for process in range(2)]


def train(*arguments: str) -> list[dict[str, Any]]:
    run = subprocess.run([*SHARDTUI, "train", "--json", *arguments], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return checked_lines("events", run.stdout)


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if event["type"] == "StepDone"]


def named(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


@pytest.mark.core
def test_a_run_of_two_processes_switches_saves_and_resumes_on_four(home: Path) -> None:
    """The short form of `tests/long/losses.py processes`, which trains transformers."""
    alone = losses(train(*LEAST, "--steps=10"))
    switches = ("--preset=fsdp", "--switch=2:fsdp-tp2", "--switch=4:tp")
    together = train(*LEAST, "--run=two", "--processes=2", "--steps=7", *switches)
    (ready,) = named(together, "EngineReady")
    assert [device["process"] for device in ready["devices"]] == [0] * 4 + [1] * 4
    assert [host["process"] for host in ready["hosts"]] == [0, 1]
    assert len({host["pid"] for host in ready["hosts"]}) == 2
    assert [receipt["digests_equal"] for receipt in named(together, "Switched")] == [True, True]
    assert [saved["step"] for saved in named(together, "CheckpointSaved")] == [7]
    resumed = train("--resume=two", "--processes=4", "--preset=dp-tp2", "--steps=10", "--switch=8:hsdp")
    assert len(named(resumed, "EngineReady")[0]["hosts"]) == 4
    assert [*losses(together), *losses(resumed)] == pytest.approx(alone, rel=1e-5)


@pytest.fixture
def engines(home: Path) -> Iterator[Engines]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, settings: Sequence[str] = SETTINGS) -> "subprocess.Popen[str]":
        command = [*SHARDTUI, "engine", *settings, *arguments]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
        return started[-1]

    yield start
    for engine in started:
        engine.kill()
        engine.wait()


@pytest.fixture
def coordinator() -> str:
    return f"localhost:{free_port()}"


def pair(
    engines: Engines, coordinator: str, *arguments: str, own: Sequence[Sequence[str]] = ((), ()), **settings: Any
) -> list["subprocess.Popen[str]"]:
    """Starts the engines of two hosts of the run `hosts`; `own`: the arguments of each."""
    member = ("--run=hosts", f"--coordinator={coordinator}", "--num-processes=2", *arguments)
    return [engines(*member, f"--process-id={number}", *own[number], **settings) for number in range(2)]


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as free:
        return free.getsockname()[1]


def history(home: Path, run: str) -> list[dict[str, Any]]:
    path = home / f"state/shardtui/runs/{run}/events.jsonl"
    return checked_lines("events", path.read_text()) if path.exists() else []


@pytest.mark.slow
def test_a_killed_process_is_reported_and_the_run_resumes_on_one(
    home: Path, engines: Engines, coordinator: str
) -> None:
    first, second = pair(engines, coordinator, "--checkpoint-every=2")
    awaited(lambda: named(history(home, "hosts"), "CheckpointSaved"))
    second.kill()
    assert first.wait(timeout=240) == 1
    (lost,), (failed,) = (named(history(home, "hosts"), kind) for kind in ("HostsLost", "Failed"))
    assert list(lost["reasons"]) == ["1"]
    assert f"process 1 ({socket.gethostname()}, pid {second.pid}) was lost" in failed["problems"][0]
    assert "process 0" in failed["problems"][1]
    kept = named(history(home, "hosts"), "CheckpointsKept")[-1]["checkpoints"][-1]["step"]
    resumed = train("--resume=hosts", "--processes=1", f"--steps={kept + 2}")
    assert named(resumed, "Restored")[0]["step"] == kept


@pytest.mark.core
def test_differences_between_hosts_are_reported(home: Path, engines: Engines, coordinator: str) -> None:
    (home / "one.txt").write_text("one text " * 1000)
    (home / "other.txt").write_text("the other " * 1000)
    own = [(f"--data={home / 'one.txt'}",), (f"--data={home / 'other.txt'}", "--seed=1")]
    first, second = pair(engines, coordinator, own=own)
    assert (first.wait(timeout=240), second.wait(timeout=240)) == (2, 2)
    problems = named(history(home, "hosts"), "Failed")[0]["problems"]
    assert [problem.partition(":")[0] for problem in problems] == ["seed", "the corpus"]
    assert second.stderr is not None
    said = second.stderr.read()
    assert "seed: 1 on process 1" in said
    assert "seed: a different value on process 1" in problems[0]


MEMBER = ("--run=a", "--coordinator=h:1", "--num-processes=2")
SHARED_NOWHERE = ("--run=a", "--supervise", "--checkpoint-dir=gs://bucket/runs")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--run=a", "--coordinator=nowhere", "--num-processes=2", "--process-id=0"), "nowhere: not HOST:PORT"),
        (MEMBER, "belong together"),
        ((*MEMBER, "--process-id=2"), "--process-id 2: must be from 0 to 1"),
        ((*MEMBER[1:], "--process-id=1"), "--run NAME is missing"),
        (SHARED_NOWHERE, "--supervise: give --coordinator"),
        (SHARED_NOWHERE, "gs://bucket/runs: give a directory on a file system that all hosts mount"),
    ],
)
def test_invalid_cluster_arguments_are_refused(
    home: Path, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert not (home / "state").exists()


def test_a_taken_port_is_refused(home: Path, engines: Engines) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        engine = engines("--run=a", f"--coordinator=localhost:{port}", "--num-processes=2", "--process-id=0")
        assert engine.wait(timeout=240) == 2
    assert engine.stderr is not None
    assert f"port {port} of this machine cannot be used" in engine.stderr.read()
    assert not (home / "state").exists()


class OneOfTwo(Cluster):
    """A process of two, which sees only fingerprints of the other's facts."""

    hosts = HOSTS

    def __init__(self, process: int, *both: dict[str, str]) -> None:
        self.process, self._both = process, both

    def fingerprint(self, text: str) -> str:
        return Seal(b"the secret of a run").fingerprint(text)

    def all_gather(self, value: Any, kind: Any) -> list[Any]:
        found = [{self.fingerprint(fact): self.fingerprint(own[fact]) for fact in own} for own in self._both]
        assert found[self.process] == value
        return found


def compared(mine: dict[str, str], theirs: dict[str, str], process: int = 0) -> list[str]:
    """Returns the differences that `process` reports."""
    return differences(OneOfTwo(process, mine, theirs), (mine, theirs)[process])


def test_each_process_reports_its_own_value_of_what_differs() -> None:
    presets = {"dp": load_preset("dp")}
    mine = facts(tiny_config(), Restart(), {"jax": "0.10.2"}, presets)
    theirs = facts(tiny_config(seed=3, data="elsewhere.txt"), Restart(preset="tp"), {"jax": "0.10.2"}, presets)
    assert compared(mine, mine) == []
    same = ": use the same on every host; each process reports its own value"
    assert compared(mine, theirs) == [
        f"seed: a different value on process 1 (host-1), 0 on process 0 (host-0){same}",
        f"--preset: a different value on process 1 (host-1), None on process 0 (host-0){same}",
    ]
    (seed, _) = compared(mine, theirs, process=1)
    assert seed.startswith("seed: 3 on process 1 (host-1), a different value on process 0")


@pytest.mark.parametrize("change", [{"microbatches": 2}, {"axis_types": "explicit"}, {"mesh": {"data": 8}}])
def test_a_preset_with_another_layout_differs(change: dict[str, Any]) -> None:
    preset = load_preset("dp")
    presets = preset, msgspec.structs.replace(preset, **change)
    (problem,) = compared(*(facts(tiny_config(), Restart(), {}, {"dp": each}) for each in presets))
    assert problem.startswith("the preset dp: a different value on process 1")


def stride(call_seconds: float, step_seconds: float) -> int:
    cluster: Any = SimpleNamespace(_call_seconds=call_seconds)
    return JaxCluster.stride(cluster, step_seconds)


def test_agreements_take_half_a_percent_of_the_time_and_are_half_a_second_apart_at_most() -> None:
    assert stride(0.001, 0.0) == 1, "before the first step"
    assert stride(0.001, 1.0) == stride(0.001, 0.2) == stride(0.0, 0.001) == 1
    assert stride(0.001, 0.05) == 4
    assert stride(0.001, 0.001) == 200
    assert stride(1.0, 0.1) == 5, "after one that took long"
