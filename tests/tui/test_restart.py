"""A restart waits while the engine makes progress on its last checkpoint, and shows what it waits for."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.model_choice import user_model
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Stop
from shardtui.engine.wire.events import Restored
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client import stopping
from shardtui.tui.client.stopping import Activity
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text
from textual.pilot import Pilot

from ..conftest import tiny_config
from .test_app import shown, status, until

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
    while step >= 3 and not Path(__file__).with_name("go").exists():
        Path(__file__).with_name("waits").touch()
        time.sleep(0.05)
    return jnp.zeros((batch_size, 4), int)
"""


@pytest.fixture
def waiting(home: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run whose fourth batch waits for a file, and which has a second to end."""
    monkeypatch.setattr(stopping, "STOP_MARGIN_SECONDS", 0.5)
    (home / "lm.py").write_text(MODEL)
    model, training = user_model(f"{home}/lm.py:lm")
    training = msgspec.structs.replace(training, batch_size=8)
    return run_directory.create(tiny_config(model=model, training=training, data=None, stop_seconds=1.0))


async def restart(app: ShardtuiApp, pilot: Pilot) -> None:
    await pilot.press("r")
    await until(lambda: app.screen.query("#yes"), "the question")
    await pilot.press("y")


@pytest.mark.slow
def test_a_restart_waits_while_the_engine_makes_progress(home: Path, waiting: RunDirectory) -> None:
    async def scenario() -> None:
        async with shown(waiting, True, (80, 24)) as (app, pilot):
            await until((home / "waits").exists, "the batch that takes its time")
            first = app.state.pid
            await restart(app, pilot)
            await until(lambda: ", then ends: " in screen_text(app), "what it waits for")
            written = 0
            for _ in range(16):  # twice as long as the viewer waits without progress
                written += 1_000_000
                waiting.path.joinpath("checkpoints/7.saving").write_bytes(b"x" * written)
                await asyncio.sleep(0.25)
            await until(lambda: "16 MB written so far" in screen_text(app), "how far that is")
            assert app.state.pid == first
            (home / "go").touch()
            await until(lambda: app.state.pid != first and app.state.phase is Phase.TRAINING, "another engine")
            restored = next(event for event in app.state.events if isinstance(event, Restored))
            assert restored.step >= 4, "the step that was under way is saved, too"
            assert not [notice for notice in app._notifications if "cannot go on" in notice.title]
            await app.client.send(Stop())
            await until(lambda: app.state.is_over, "the end")
            assert app.state.phase is Phase.STOPPED
            await until(lambda: status(app).endswith("■ stopped"), "the header")

    asyncio.run(scenario())


def test_a_restart_gives_up_on_an_engine_without_progress(home: Path, waiting: RunDirectory) -> None:
    async def scenario() -> None:
        async with shown(waiting, True, (80, 24)) as (app, pilot):
            await until((home / "waits").exists, "the batch that takes its time")
            first = app.state.pid
            await restart(app, pilot)
            await until(lambda: app.state.pid != first and app.state.phase is Phase.TRAINING, "another engine")
            second = app.state.pid
            await restart(app, pilot)
            await pilot.press("d")
            await until(lambda: app.return_code is not None, "the end of the viewer")
            assert app.state.pid == second

    try:
        asyncio.run(scenario())
    finally:
        asyncio.run(stopping.kill(waiting))


def test_output_and_io_count_as_activity(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    with directory.hold():
        activity = Activity(directory)
        activity.poll()
        active_at = activity.active_at
        activity.poll()
        assert activity.active_at == active_at
        read, write = os.pipe()
        for sign in (
            lambda: directory.log.write_text("a word"),
            lambda: directory.events.write_text("{}"),
            lambda: (directory.path / "checkpoints").mkdir() or (directory.path / "checkpoints/x").write_bytes(b"12"),
            lambda: [os.write(write, b"x" * 4096) and os.read(read, 4096) for _ in range(32)],
        ):
            sign()
            activity.poll()
            assert activity.active_at > active_at
            active_at = activity.active_at
        assert activity.checkpoint_growth == 2
