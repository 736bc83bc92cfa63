"""A restart waits while the engine makes progress on its last checkpoint; one of two engines resumes a run."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.config import Restart
from shardtui.engine.spec.model_choice import user_model
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import AnyEvent, EngineStarted, EngineStopped, Failed, Restored
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client import stopping
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.client.stopping import Activity
from shardtui.tui.screens import restarting
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text

from ..conftest import PACED_FILE, tiny_config
from .test_app import answer, shown, status, stop, until
from .test_cli import run, started

MODEL = """
import time
from pathlib import Path
import jax.numpy as jnp
from flax import nnx

class Lm(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(256, 8, rngs=rngs)

    def __call__(self, tokens):
        return self.table(tokens)

def lm(rngs: nnx.Rngs):
    return Lm(rngs)

def loss(model, batch):
    return model(batch).mean()

def batch(step, batch_size):
    if step == 1:
        time.sleep(0.6)  # until the first step is reported
    while step >= 3 and not Path(__file__).with_name("go").exists():
        Path(__file__).with_name("waits").touch()
        if Path(__file__).with_name("writes").exists():
            Path(__file__).with_name("written").write_bytes(bytes(100_000))
        time.sleep(0.05)
    return jnp.zeros((batch_size, 4), int)
"""


@pytest.fixture
def waiting(home: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run whose fourth batch waits for a file; it is killed after two seconds without progress."""
    monkeypatch.setattr(restarting, "exit_limit_seconds", lambda _: 2.0)
    (home / "lm.py").write_text(MODEL)
    model, training = user_model(f"{home}/lm.py:lm")
    training = msgspec.structs.replace(training, batch_size=8)
    return run_directory.create(tiny_config(model=model, training=training, data=None, stop_seconds=1.0))


@pytest.mark.slow
async def test_a_restart_waits_while_the_engine_makes_progress(home: Path, waiting: RunDirectory) -> None:
    async with shown(waiting, True) as (app, pilot):
        await until((home / "waits").exists, "the batch that takes its time")
        first = app.state.pid
        (home / "writes").touch()
        await answer(app, pilot, "r")
        await until(lambda: ", then ends: " in screen_text(app), "what it waits for")
        await asyncio.sleep(4)  # twice as long as the viewer waits without progress
        await until(lambda: "MB read and written so far" in screen_text(app), "how far that is")
        assert app.state.pid == first
        (home / "go").touch()
        await until(lambda: app.state.pid != first and app.state.phase is Phase.TRAINING, "another engine")
        restored = next(event for event in app.state.events if isinstance(event, Restored))
        assert restored.step >= 4, "the step that was under way is saved, too"
        assert not [notice for notice in app._notifications if "cannot go on" in notice.title]
        await stop(app)
        assert app.state.phase is Phase.STOPPED
        await until(lambda: status(app).endswith("■ stopped"), "the header")


@pytest.mark.core
async def test_a_restart_gives_up_on_an_engine_without_progress(home: Path, waiting: RunDirectory) -> None:
    async with shown(waiting, True) as (app, pilot):
        await until(lambda: app.state.step and (home / "waits").exists(), "the batch that takes its time")
        first = app.state.pid
        await answer(app, pilot, "r")
        await until(lambda: app.state.pid != first and app.state.phase is Phase.TRAINING, "another engine")
        second = app.state.pid
        await answer(app, pilot, "r")
        await pilot.press("d")
        await until(lambda: app.return_code is not None, "the end of the viewer")
        assert app.state.pid == second
    await stopping.kill(waiting)


def test_io_counts_as_activity(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    with directory.hold():
        activity = Activity(directory)
        activity.poll()
        active_at = activity.active_at
        activity.poll()
        assert activity.active_at == active_at
        read, write = os.pipe()
        for _ in range(32):
            os.write(write, b"x" * 4096)
            os.read(read, 4096)
        activity.poll()
        assert activity.active_at > active_at and activity.bytes >= 2 * 32 * 4096


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps, of a model that takes its time to be traced: the others start meanwhile."""
    state = tmp_path_factory.mktemp("state")
    model = f"--model={PACED_FILE}:SlowToTrace"
    begun = run("train", model, "--batch-size=8", "--run=mine", "--steps=2", XDG_STATE_HOME=str(state))
    assert begun.returncode == 0, begun.stderr
    return state


@pytest.fixture
def mine(home: Path, trained: Path) -> Path:
    shutil.copytree(trained, home / "state")
    return run_directory.find("mine").path


async def test_a_viewer_follows_whoever_resumes_the_run(mine: Path) -> None:
    """Also the viewer of an engine that it has started itself; and `r` there starts no other."""
    other = EngineClient(RunDirectory(mine))
    more = Restart(config=msgspec.structs.replace(other.directory.config, steps=None))
    async with shown(EngineClient(RunDirectory(mine)), restart=more) as (app, pilot):
        await until(lambda: app.state.phase is Phase.TRAINING, "its own engine")
        app.client.kill_engine()
        await until(lambda: app.state.phase is Phase.LOST, "its end")
        ended = app.state.pid
        other.start_engine(more)
        await until(lambda: other.directory.is_alive, "another viewer's engine")
        await pilot.press("r")
        await until(lambda: app.state.phase is Phase.TRAINING, "that engine's steps")
        holder = other.directory.holder()
        assert holder
        assert app.state.pid == holder.pid != ended
        await stop(app)
        assert app.state.phase is Phase.STOPPED


async def test_the_other_viewers_get_none_of_its_events(mine: Path) -> None:
    """All have found the run free, and have started an engine."""

    async def events_of(client: EngineClient) -> list[AnyEvent]:
        client.start_engine(Restart(config=msgspec.structs.replace(client.directory.config, steps=3)))
        found = [event async for events in client.events() for event in events if not client.is_old(event)]
        client.discard_if_new()  # as after a run that could not begin
        return found

    clients = [EngineClient(RunDirectory(mine)) for _ in range(3)]
    winner, *losers = sorted(await asyncio.gather(*map(events_of, clients)), key=len, reverse=True)
    (started,) = [event for event in winner if isinstance(event, EngineStarted)]
    assert isinstance(winner[-1], EngineStopped)
    outrun = "started at the same moment, is training it: `shardtui attach mine` shows it"
    for (only,) in losers:
        assert isinstance(only, Failed)
        assert only.problems == [f"run mine: process {started.pid}, {outrun}"]


@pytest.mark.core
def test_a_run_without_events_is_not_discarded_by_the_loser(mine: Path) -> None:
    """Such a run looks new, and a new run that cannot begin is discarded."""
    (mine / "events.jsonl").unlink()
    both = [started("train", "--json", "--resume=mine", "--steps=3") for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], outputs
    trained = [
        json.loads(line)["step"] for output, _ in outputs for line in output.splitlines() if '"StepDone"' in line
    ]
    assert trained == [3], "by one of them"
    assert sum("is training it: `shardtui attach mine` shows it" in errors for _, errors in outputs) == 1
    assert (mine / "run.json").exists()
    assert (mine / "checkpoints/3").is_dir()
