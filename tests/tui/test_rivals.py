"""Two engines resume the same run at the same moment: one trains it, and the other one says so."""

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.config import Restart
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import AnyEvent, EngineStarted, EngineStopped, Failed
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client.engine_client import EngineClient

from ..conftest import SETTINGS
from .test_cli import run, started

TRAINING = "is training it: `shardtui attach mine` shows it"
OUTRUN = f"started at the same moment, {TRAINING}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps."""
    state = tmp_path_factory.mktemp("state")
    begun = run("train", "--run=mine", "--steps=2", *SETTINGS, XDG_STATE_HOME=str(state))
    assert begun.returncode == 0, begun.stderr
    return state


@pytest.fixture
def mine(home: Path, trained: Path) -> Path:
    shutil.copytree(trained, home / "state")
    return run_directory.find("mine").path


@pytest.mark.slow
def test_one_of_two_engines_resumes_a_run(mine: Path) -> None:
    for done in (4, 6, 8):
        both = [started("train", "--json", "--resume=mine", f"--steps={done}") for _ in range(2)]
        outputs = [process.communicate(timeout=240) for process in both]
        (_, winner, lines, _), (_, _, silent, problem) = sorted(
            (process.returncode, process.pid, *output) for process, output in zip(both, outputs, strict=True)
        )
        assert sorted(process.returncode for process in both) == [0, 2], outputs
        assert [json.loads(line)["step"] for line in lines.splitlines() if '"StepDone"' in line] == [done - 1, done]
        assert "StepDone" not in silent
        (begun,) = [json.loads(line) for line in lines.splitlines() if '"EngineStarted"' in line]
        found_running = f"run mine: process {begun['pid']} {TRAINING}"  # by a command that began a moment later
        assert f"run mine: process {begun['pid']}, {OUTRUN}" in problem or found_running in problem
        assert winner != begun["pid"]
    states = {each["run"]: (each["state"], each["step"]) for each in json.loads(run("ls", "--json").stdout)["runs"]}
    assert states == {"mine": ("stopped", 8)}


async def _all(client: EngineClient, steps: int) -> list[AnyEvent]:
    client.start_engine(Restart(config=msgspec.structs.replace(client.directory.config, steps=steps)))
    found = [event async for events in client.events() for event in events if not client.is_old(event)]
    client.discard_if_new()  # as after a run that could not begin
    return found


def test_the_other_viewers_get_none_of_its_events(mine: Path) -> None:
    """All have found the run free, and have started an engine."""
    clients = [EngineClient(RunDirectory(mine)) for _ in range(3)]
    winner, *losers = sorted(asyncio.run(_together(clients, 3)), key=len, reverse=True)
    (started,) = [event for event in winner if isinstance(event, EngineStarted)]
    assert isinstance(winner[-1], EngineStopped)
    for (only,) in losers:
        assert isinstance(only, Failed)
        assert only.problems == [f"run mine: process {started.pid}, {OUTRUN}"]


async def _together(clients: list[EngineClient], steps: int) -> list[list[AnyEvent]]:
    return await asyncio.gather(*(_all(client, steps) for client in clients))


@pytest.mark.core
def test_a_run_without_events_is_not_discarded_by_the_loser(mine: Path) -> None:
    """Such a run looks new, and a new run that cannot begin is discarded."""
    (mine / "events.jsonl").unlink()
    both = [started("train", "--json", "--resume=mine", "--steps=3") for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], outputs
    assert (mine / "run.json").exists()
    assert (mine / "checkpoints/3").is_dir()
