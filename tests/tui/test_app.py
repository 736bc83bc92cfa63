"""The UI on a real engine, driven by keys. No part of it is replaced."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.config import ScheduledSwitch
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Stop
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.run_state import Phase
from shardtui.tui.widgets.loss_chart import LossChart
from shardtui.tui.widgets.panels import LastSwitch
from shardtui.tui.widgets.preset_list import PresetList
from shardtui.tui.widgets.sharding_pane import ShardingPane
from shardtui.tui.widgets.status_bar import StatusBar
from textual.pilot import Pilot
from textual.widgets import DataTable, OptionList, RichLog

from ..conftest import tiny_config

SECONDS = 90


async def until(holds: Callable[[], object], why: str) -> None:
    for _ in range(SECONDS * 20):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited {SECONDS} s in vain for: {why}")


@asynccontextmanager
async def shown(
    directory: RunDirectory, starts: bool, size: tuple[int, int]
) -> AsyncIterator[tuple[ShardtuiApp, Pilot]]:
    app = ShardtuiApp(EngineClient(directory), starts)
    async with app.run_test(size=size) as pilot:
        try:
            yield app, pilot
        except AssertionError:
            app.client.kill_engine()
            raise


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of four steps with a switch, which has ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        directory = run_directory.create(tiny_config(steps=4, switches=(ScheduledSwitch(2, "fsdp-tp2"),)))
        subprocess.run([sys.executable, "-m", "shardtui.engine", "serve", str(directory.path)], check=True)
    return directory


def status(app: ShardtuiApp) -> str:
    return app.screen.query_one(StatusBar).lines[0].plain


async def choose(app: ShardtuiApp, pilot: Pilot, preset: str) -> None:
    """By the keys, from where the cursor is."""
    presets = app.screen.query_one(PresetList)
    rows = presets.get_option_index(preset) - (presets.highlighted or 0)
    await pilot.press(*["down" if rows > 0 else "up"] * abs(rows), "enter")


def test_start_switch_pause_step_detach_attach_stop(home: Path) -> None:
    directory = run_directory.create(tiny_config())

    async def first() -> list[float]:
        async with shown(directory, True, (140, 40)) as (app, pilot):
            await until(lambda: app.state.step >= 5, "steps")
            assert "● training" in status(app)
            assert "data 8 × model 1" in status(app)
            presets = app.screen.query_one(PresetList)
            assert presets.option_count >= 11
            await choose(app, pilot, "dp-tp2")
            assert presets.highlighted_preset == "dp-tp2"
            await until(lambda: app.state.compiling or app.state.switches, "a compilation")
            await until(lambda: app.state.preset == "dp-tp2", "the switch")
            await until(lambda: "dp-tp2 · data 4 × model 2" in status(app), "the status line")
            chart = app.screen.query_one(LossChart)
            await until(lambda: any("┊" in line.plain for line in chart.lines), "the mark of the switch")
            await pilot.press("space")
            await until(lambda: app.state.phase is Phase.PAUSED, "the pause")
            paused_at = app.state.step
            await pilot.press("s", "s")
            await until(lambda: app.state.step == paused_at + 2, "two steps")
            await asyncio.sleep(0.5)
            assert app.state.step == paused_at + 2
            await pilot.press("2")
            await until(lambda: app.screen.query(DataTable) and app.screen.query_one(DataTable).row_count, "the table")
            await until(lambda: app.screen.query_one(DataTable).row_count == 86, "gradients and activations")
            await pilot.press("down")
            await until(lambda: app.screen.query_one(ShardingPane).lines, "the pane")
            assert any("CPU 0,2,4,6" in line.plain for line in app.screen.query_one(ShardingPane).lines)
            await pilot.press("0")
            await until(lambda: app.screen.query(RichLog) and app.screen.query_one(RichLog).lines, "the log")
            await pilot.press("question_mark")
            await until(lambda: app.screen.query("HelpPanel"), "the help")
            await pilot.press("question_mark", "1", "space")
            await until(lambda: app.state.step > paused_at + 4, "training again")
            await pilot.press("d")
        assert "goes on training" in app.last_words()[0]
        return list(app.state.losses)

    async def second(before: list[float]) -> None:
        async with shown(directory, False, (80, 24)) as (app, pilot):
            await until(lambda: app.state.step > len(before), "more steps")
            assert list(app.state.losses[: len(before)]) == before
            assert len(app.state.losses) == app.state.step
            assert [switch.to_preset for switch in app.state.switches] == ["dp-tp2"]
            assert "● training" in status(app)
            await pilot.press("x")
            await until(lambda: app.screen.query("#yes"), "the question")
            await pilot.press("n")
            await pilot.press("x")
            await until(lambda: app.screen.query("#yes"), "the question again")
            await pilot.press("y")
            await until(lambda: app.state.phase is Phase.STOPPED, "the end")
            await until(lambda: directory.holder() is None, "the engine's exit")
            await pilot.press("d")
        assert "has ended after step" in app.last_words()[0]

    asyncio.run(second(asyncio.run(first())))


def test_a_refused_run_ends_the_ui_with_the_reason(home: Path) -> None:
    directory = run_directory.create(tiny_config(devices=7))

    async def scenario() -> None:
        async with shown(directory, True, (80, 24)) as (app, _):
            await until(lambda: app.return_code == 2, "the refusal")
        assert "batch 8 does not divide by 7" in app.last_words()[0]

    asyncio.run(scenario())
    assert not directory.path.exists()


def test_an_engine_that_is_killed_becomes_a_state(home: Path) -> None:
    directory = run_directory.create(tiny_config())

    async def scenario() -> None:
        async with shown(directory, True, (80, 24)) as (app, pilot):
            await until(lambda: app.state.step >= 2, "steps")
            app.client.kill_engine()
            await until(lambda: app.state.phase is Phase.LOST, "the loss")
            await pilot.pause(0.2)
            assert "✗ crashed" in status(app)
            assert "SIGKILL" in " ".join(line.plain for line in app.screen.query_one(LastSwitch).lines)
            await pilot.press("space", "s", "enter", "2")
            await until(lambda: app.screen.query(DataTable) and app.screen.query_one(DataTable).row_count, "the table")
        assert "SIGKILL" in app.last_words()[0]

    asyncio.run(scenario())


def test_a_new_engine_goes_on_from_a_checkpoint(home: Path) -> None:
    directory = run_directory.create(tiny_config())

    async def scenario() -> None:
        async with shown(directory, True, (140, 40)) as (app, pilot):
            await until(lambda: app.state.step >= 3, "steps")
            await pilot.press("w")
            await until(lambda: app.state.newest, "a checkpoint")
            saved = app.state.checkpoints[0].step
            before = list(app.state.losses[:saved])
            await until(lambda: app.state.step > saved + 3, "more steps")
            app.client.kill_engine()
            await until(lambda: app.state.phase is Phase.LOST, "the loss")
            assert f"r: go on from step {saved}" in str(app.screen.query_one(LastSwitch).border_subtitle)
            await pilot.press("r")
            await until(lambda: app.state.phase is Phase.TRAINING, "a new engine")
            assert app.state.marks == [(saved, "↺dp")]
            await until(lambda: app.state.step > saved, "steps after the checkpoint")
            assert list(app.state.losses[:saved]) == before
            await pilot.press("space")
            await until(lambda: app.state.phase is Phase.PAUSED, "the pause")
            await pilot.press("w")
            await until(lambda: len(app.state.checkpoints) == 2, "another checkpoint")
            later = app.state.checkpoints[1].step
            await pilot.press("c")
            await until(lambda: app.screen.query(OptionList), "the list")
            await pilot.press("down", "enter")
            await until(lambda: app.state.step == saved, "the way back")
            await until(lambda: [kept.step for kept in app.state.checkpoints] == [saved], "the later one set aside")
            assert (directory.path / f"checkpoints/{later}.rolled-back").is_dir()
            await pilot.press("s")
            await until(lambda: app.state.step == saved + 1, "a step from there")
            await pilot.press("r")
            await until(lambda: app.screen.query("#yes"), "the question")
            await pilot.press("y")
            await until(lambda: app.state.phase is Phase.TRAINING, "a third engine")
            await app.client.send(Stop())
            await until(lambda: app.state.is_over, "the end")
            assert app.state.checkpoints[-1].step == app.state.step

    asyncio.run(scenario())


def test_a_loss_that_is_not_finite_pauses_the_run(home: Path) -> None:
    config = tiny_config()
    training = msgspec.structs.replace(config.training, learning_rate=1e30)
    directory = run_directory.create(msgspec.structs.replace(config, training=training))

    async def scenario() -> None:
        async with shown(directory, True, (80, 24)) as (app, pilot):
            await until(lambda: app.state.phase is Phase.PAUSED, "the pause")
            assert "the loss is not finite" in str(app.state.paused_by)
            await pilot.pause(0.2)
            assert "not finite" in " ".join(line.plain for line in app.screen.query_one(LastSwitch).lines)
            paused_at = app.state.step
            await pilot.press("space")
            await until(lambda: app.state.step > paused_at + 3, "steps in spite of it")
            await app.client.send(Stop())
            await until(lambda: app.state.is_over, "the end")
            assert app.state.checkpoints == [], "there is nothing to go on from"

    asyncio.run(scenario())


def test_a_second_request_takes_the_place_of_the_first(home: Path) -> None:
    directory = run_directory.create(tiny_config())

    async def scenario() -> None:
        async with shown(directory, True, (80, 24)) as (app, pilot):
            await until(lambda: app.state.step >= 1, "steps")
            await choose(app, pilot, "dp-tp2")
            await choose(app, pilot, "dp-tp4")
            await until(lambda: app.state.switches, "a switch")
            assert [switch.to_preset for switch in app.state.switches] == ["dp-tp4"]
            await choose(app, pilot, "fsdp")
            await until(lambda: app.state.compiling, "a compilation")
            await choose(app, pilot, "dp-tp4")
            await until(lambda: app.state.compiling is None, "it to be taken back")
            await asyncio.sleep(4)
            assert app.state.preset == "dp-tp4"
            await app.client.send(Stop())
            await until(lambda: app.state.is_over, "the end")

    asyncio.run(scenario())


def test_events_that_arrive_while_a_view_comes_up(home: Path, ended: RunDirectory) -> None:
    async def scenario() -> None:
        async with shown(ended, False, (80, 24)) as (app, pilot):
            await until(lambda: app.state.phase is Phase.STOPPED, "the history")
            for mode in app.MODES:
                coming = app.switch_mode(mode)
                while not app.screen.is_mounted:
                    app.show_state()
                    await asyncio.sleep(0.001)
                await coming
                await pilot.pause()
            assert status(app).endswith("■ stopped")

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (40, 10), (80, 24), (140, 40), (300, 100)])
def test_every_view_in_every_size(home: Path, ended: RunDirectory, size: tuple[int, int]) -> None:
    """Over a run that has ended: its history alone is enough."""

    async def scenario() -> None:
        async with shown(ended, False, size) as (app, pilot):
            await until(lambda: app.state.phase is Phase.STOPPED, "the history")
            for key in (
                "2",
                "down",
                "tab",
                "right",
                "question_mark",
                "3",
                "4",
                "5",
                "8",
                "right",
                "plus",
                "escape",
                "0",
                "1",
                "l",
                "down",
                "question_mark",
            ):
                await pilot.press(key)
                await pilot.pause(0.05)
            await pilot.resize_terminal(80, 24)
            await pilot.resize_terminal(*size)
            await pilot.pause(0.05)
            assert len(app.state.losses) == 4
            presets = app.screen.query_one(PresetList)
            assert presets.virtual_size.height == presets.option_count, "a row has one line"

    asyncio.run(scenario())


def test_a_preset_that_cannot_be_leaves_the_old_one_training(home: Path) -> None:
    presets = home / "config/shardtui/presets/parallelism"
    presets.mkdir(parents=True)
    (presets / "wide.toml").write_text('[mesh]\ndata = -1\n[rules]\nlayers = "data"\n')
    directory = run_directory.create(tiny_config(preset="fsdp"))

    async def scenario() -> None:
        async with shown(directory, True, (140, 40)) as (app, pilot):
            await until(lambda: app.state.step >= 1, "steps")
            listed = app.screen.query_one(PresetList)
            await until(lambda: listed.highlighted_preset == "fsdp", "the cursor where training is")
            listed.highlighted = listed.get_option_index("wide")
            assert listed.highlighted_option
            assert str(listed.highlighted_option.prompt).startswith("✗ wide")
            await pilot.press("enter")
            await until(lambda: app.state.refused, "the refusal")
            assert "layers 2 does not divide by 8" in app.state.refused.problems[0]
            step = app.state.step
            await until(lambda: app.state.step > step + 3, "more steps")
            assert (app.state.preset, app.state.phase) == ("fsdp", Phase.TRAINING)
            assert "not to wide" in app.screen.query_one(LastSwitch).lines[0].plain
            await app.client.send(Stop())
            await until(lambda: app.state.is_over, "the end")

    asyncio.run(scenario())
