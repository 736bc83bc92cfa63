"""The UI on a real engine, driven by keys. Nothing is mocked."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.spec.config import Restart
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import AnyCommand, InspectPreset, Stop
from shardtui.engine.wire.events import SwitchCancelled, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.messages import EventsArrived
from shardtui.tui.screens.help import HelpScreen
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.preset_list import FOLDED, PresetList, group_of
from textual.pilot import Pilot

from ..conftest import least_config, paced_config, tiny_config
from ..recorded import started as engine_started
from ..schemas import checked_lines
from .recordings import recorded

SECONDS = 90


async def until(holds: Callable[[], object], why: str) -> None:
    for _ in range(SECONDS * 100):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited {SECONDS} s in vain for: {why}")


@asynccontextmanager
async def shown(
    of: RunDirectory | EngineClient, starts: bool = False, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[tuple[ShardtuiApp, Pilot[None]]]:
    client = of if isinstance(of, EngineClient) else EngineClient(of)
    app = ShardtuiApp(client, **({"restart": Restart()} if starts else {}), **options)
    async with app.run_test(size=size) as pilot:
        try:
            yield app, pilot
        except AssertionError:
            app.client.kill_engine()
            raise


@asynccontextmanager
async def finished(
    directory: RunDirectory, size: tuple[int, int] = (140, 40), **options: Any
) -> AsyncIterator[tuple[ShardtuiApp, Pilot[None]]]:
    """Shows a run that has ended, once its history is read and Watch is drawn."""
    async with shown(directory, False, size, **options) as (app, pilot):
        await until(lambda: app.state.is_over, "the history")
        await listed_presets(app)
        yield app, pilot


async def listed_presets(app: ShardtuiApp) -> PresetList:
    """Returns the list of presets, filled once the engine has told them; an external loop has none to choose."""
    await until(lambda: app.screen.query(PresetList), "Watch")
    presets, state = app.screen.query_one(PresetList), app.state
    await until(lambda: presets.options or state.watched or not (state.ready and state.ready.presets), "the presets")
    return presets


def status(app: ShardtuiApp) -> str:
    return app.screen.query_one("StatusBar").lines[0].plain


async def choose(app: ShardtuiApp, pilot: Pilot, preset: str) -> None:
    """Selects a preset by keys, from the cursor's row; unfolds its group if need be."""
    presets = await listed_presets(app)
    if preset not in presets.shown:
        presets.highlighted = presets.get_option_index(f"# {group_of(app.state.preset_info(preset))}")
        await pilot.press("enter")
        await until(lambda: preset in presets.shown, "its group")
    begin, end = presets.highlighted or 0, presets.get_option_index(preset)
    passed = sum(not option.disabled for option in presets.options[min(begin, end) : max(begin, end)])
    await pilot.press(*["down" if end > begin else "up"] * passed, "enter")


async def run_command(app: ShardtuiApp, title: str) -> None:
    """Chooses a command of the palette."""
    (command,) = (each for each in app.get_system_commands(app.screen) if each.title == title)
    command.callback()


async def answer(app: ShardtuiApp, pilot: Pilot, key: str, answer: str = "y") -> None:
    await pilot.press(key)
    await until(lambda: app.screen.query("#yes"), "the question")
    await pilot.press(answer)


async def stop(app: ShardtuiApp) -> None:
    await app.client.send(Stop())
    await until(lambda: app.state.is_over, "the end")


async def test_start_switch_pause_step_detach_attach_stop(home: Path) -> None:
    directory = run_directory.create(paced_config())
    async with shown(directory, True, (140, 40)) as (app, pilot):
        await until(lambda: app.state.step >= 5, "steps")
        assert "● training" in status(app) and "data 8 × model 1" in status(app)
        presets = await listed_presets(app)
        listed = {option.id for option in presets.options}
        unfolded = {info.name for info in app.state.ready.presets if group_of(info) not in FOLDED}
        assert unfolded == {id for id in listed if not id.startswith("# ")}
        await choose(app, pilot, "dp-tp2")
        assert presets.highlighted_preset == "dp-tp2"
        await until(lambda: app.state.compiling or app.state.switches, "a compilation")
        await until(lambda: "dp-tp2 · data 4 × model 2" in status(app), "the status line")
        chart = app.screen.query_one("LossChart")
        await until(lambda: any("┊" in line.plain for line in chart.lines), "the mark of the switch")
        await pilot.press("space")
        await until(lambda: app.state.phase is Phase.PAUSED, "the pause")
        paused_at = app.state.step
        await pilot.press("s", "s")
        await until(lambda: app.state.step == paused_at + 2, "two steps")
        await pilot.press("2")
        await until(lambda: app.state.inspection and app.screen.query("DataTable"), "gradients and activations")
        every_array = len(app.state.arrays)
        await until(lambda: app.screen.query_one("DataTable").row_count == every_array, "a row for every array")
        await pilot.press("down")
        pane = app.screen.query_one("ShardingPane")
        await until(lambda: any("CPU 0,2,4,6" in line.plain for line in pane.lines), "the pane")
        assert app.state.step == paused_at + 2
        await pilot.press("0")
        await until(lambda: "dp → dp-tp2 at step" in screen_text(app), "the log")
        await pilot.press("question_mark")
        await until(lambda: isinstance(app.screen, HelpScreen), "the help")
        await pilot.press("escape", "1", "space")
        await until(lambda: app.state.step > paused_at + 4, "training again")
        await pilot.press("d")
    assert "keeps training" in app.lifecycle.exit_lines()[0]
    before = list(app.state.losses)
    async with shown(directory) as (app, pilot):
        await until(lambda: app.state.step > len(before), "more steps")
        assert list(app.state.losses[: len(before)]) == before
        assert len(app.state.losses) == app.state.step
        assert [switch.to_preset for switch in app.state.switches] == ["dp-tp2"]
        assert "● training" in status(app)
        await answer(app, pilot, "x", "n")
        await answer(app, pilot, "x")
        await until(lambda: app.state.phase is Phase.STOPPED, "the end")
        await until(lambda: directory.holder() is None, "the engine's exit")
        await pilot.press("d")
    assert "has ended after step" in app.lifecycle.exit_lines()[0]


async def test_the_ui_exits_with_the_reason_if_the_run_is_refused(home: Path) -> None:
    directory = run_directory.create(tiny_config(devices=7))
    async with shown(directory, True) as (app, _):
        await until(lambda: app.return_code == 2, "the refusal")
    assert "batch 8 does not divide by 7" in app.lifecycle.exit_lines()[0]
    assert not directory.path.exists()


@pytest.mark.slow
async def test_a_new_engine_resumes_from_a_checkpoint(home: Path) -> None:
    directory = run_directory.create(paced_config())
    async with shown(directory, True, (140, 40)) as (app, pilot):
        await until(lambda: app.state.step >= 3, "steps")
        await pilot.press("w")
        await until(lambda: app.state.newest, "a checkpoint")
        saved = app.state.checkpoints[0].step
        before = list(app.state.losses[:saved])
        await until(lambda: app.state.step > saved + 3, "more steps")
        app.client.kill_engine()
        await until(lambda: app.state.phase is Phase.LOST, "the loss")
        assert f"r: resume from step {saved}" in str(app.screen.query_one("LastSwitch").border_subtitle)
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
        await until(lambda: app.screen.query("OptionList"), "the list")
        await pilot.press("down", "enter")
        await until(lambda: app.state.step == saved, "the restored step")
        await until(lambda: [kept.step for kept in app.state.checkpoints] == [saved], "the later one set aside")
        assert (directory.path / f"checkpoints/{later}.rolled-back").is_dir()
        await pilot.press("s")
        await until(lambda: app.state.step == saved + 1, "a step after the restored one")
        await answer(app, pilot, "r")
        await until(lambda: app.state.phase is Phase.TRAINING, "a third engine")
        await stop(app)
        assert app.state.checkpoints[-1].step == app.state.step
    assert "Restored" in {event["type"] for event in checked_lines("events", directory.events.read_text())}


async def test_a_loss_that_is_not_finite_pauses_the_run(home: Path) -> None:
    config = least_config()
    training = msgspec.structs.replace(config.training, learning_rate=1e30)
    directory = run_directory.create(msgspec.structs.replace(config, training=training))
    async with shown(directory, True) as (app, pilot):
        await until(lambda: app.state.phase is Phase.PAUSED, "the pause")
        assert "is not finite, first in" in str(app.state.paused_by)
        reason = app.screen.query_one("LastSwitch")
        await until(lambda: "not finite" in " ".join(line.plain for line in reason.lines), "the reason")
        paused_at = app.state.step
        await pilot.press("space")  # repeats the step
        await until(lambda: "the loss is not finite" in str(app.state.paused_by), "a second pause")
        await pilot.press("space")
        await until(lambda: app.state.step > paused_at + 3, "more steps once the user resumes")
        await stop(app)
        assert app.state.checkpoints == [], "there is nothing to resume from"
    events = checked_lines("events", directory.events.read_text())
    assert any("losses" in event.get("nonfinite", ()) and None in event["losses"] for event in events)


@pytest.mark.slow
async def test_a_second_switch_replaces_a_pending_one(home: Path) -> None:
    directory = run_directory.create(paced_config("SlowToTrace"))
    async with shown(directory, True) as (app, pilot):
        await until(lambda: app.state.step >= 1, "steps")
        await choose(app, pilot, "dp-tp2")
        await choose(app, pilot, "dp-tp4")
        await until(lambda: app.state.switches, "a switch")
        assert [switch.to_preset for switch in app.state.switches] == ["dp-tp4"]
        await choose(app, pilot, "fsdp")
        await until(lambda: app.state.compiling, "a compilation")
        await choose(app, pilot, "dp-tp4")
        await until(lambda: app.state.compiling is None, "the switch to be cancelled")
        await asyncio.sleep(4)
        assert app.state.preset == "dp-tp4"
        await stop(app)


CURSOR = ("tab", "right", "escape")
"""Sets a cursor in the loss chart, and takes it away."""


@pytest.mark.slow
async def test_a_request_shows_before_its_answer_and_escape_cancels_it(home: Path) -> None:
    directory = run_directory.create(paced_config())
    async with shown(directory, True) as (app, pilot):
        await until(lambda: app.state.step >= 1, "steps")
        holder = directory.holder()
        assert holder
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            for request, keys in ((run_command(app, "Switch to dp-tp2"), ()), (choose(app, pilot, "dp-tp2"), CURSOR)):
                await request
                await until(lambda: "requested, no answer yet" in screen_text(app), "the request")
                await pilot.press(*keys)
                assert app.state.requested == "dp-tp2", "it ended the cursor of the chart"
                await pilot.press("escape")
                await until(lambda: "requested, no answer yet" not in screen_text(app), "its end")
        finally:
            os.kill(holder.pid, signal.SIGCONT)
        await until(lambda: any(isinstance(event, SwitchCancelled) for event in app.state.events), "the answer")
        assert (app.state.preset, app.state.requested, app.state.switches) == ("dp", "", [])
        await stop(app)


async def test_events_may_arrive_while_a_view_is_mounted(home: Path) -> None:
    async with finished(recorded()) as (app, pilot):
        for mode in ("watch", *app.MODES):
            mounting = app.switch_mode(mode)
            while not app.screen.is_mounted:
                app.show_state()
                await asyncio.sleep(0.001)
            await mounting
            await pilot.pause()
        assert status(app).endswith("■ stopped")


async def test_folded_presets_unfold_where_no_switch_is_possible(home: Path) -> None:
    async with finished(recorded()) as (app, pilot):
        presets = await listed_presets(app)
        folded = [*presets.shown]
        presets.put_cursor_on(next(id for id, row in presets.shown.items() if row.plain.startswith("▸")))
        await pilot.press("enter")
        await until(lambda: len(presets.shown) > len(folded), "its presets")


async def test_each_engine_is_asked_once_for_the_other_arrays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[AnyCommand] = []

    async def send(command: AnyCommand) -> None:
        sent.append(command)

    async with finished(recorded()) as (app, _):
        monkeypatch.setattr(app.client, "send", send)
        for number in (1, 2):
            await app.apply(EventsArrived([engine_started(), TrainingStarted("dp")]))
            app.lookups.inspect()
            app.lookups.inspect()
            await until(lambda: len(sent) >= number, "a request")  # noqa: B023 (it is awaited here)
        assert sent == 2 * [InspectPreset("dp")]


@pytest.mark.parametrize(
    "size",
    [(1, 1), (10, 3), (300, 100), *(pytest.param(size, marks=pytest.mark.slow) for size in ((40, 10), (140, 40)))],
)
async def test_every_view_is_drawn_in_every_size(home: Path, size: tuple[int, int]) -> None:
    """On a run that has ended, as its history is enough for this."""
    async with finished(recorded(), size) as (app, pilot):
        for keys in ("2 down tab right question_mark", "3 4 5 8 right plus escape", "0 1 l down question_mark escape"):
            await pilot.press(*keys.split())
        for view in "1568":  # lists without room for a line
            await pilot.press(view, "pageup", "pagedown", "pageup")
        await pilot.press("1", "c", "pageup", "pagedown")
        assert app.screen.query("Choices")
        await pilot.press("escape")
        await pilot.resize_terminal(80, 24)
        presets = await listed_presets(app)
        await until(lambda: presets.virtual_size.height == presets.option_count, "one line for each row")
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert len(app.state.losses) == 120


async def test_after_an_invalid_preset_training_continues_until_the_engine_is_killed(home: Path) -> None:
    presets = home / "config/shardtui/presets/parallelism"
    presets.mkdir(parents=True)
    (presets / "wide.toml").write_text('[mesh]\ndata = 16\n[rules]\nbatch = "data"\n')
    directory = run_directory.create(paced_config(preset="fsdp"))
    async with shown(directory, True, (140, 40)) as (app, pilot):
        await until(lambda: app.state.step >= 1, "steps")
        rows = await listed_presets(app)
        await until(lambda: rows.highlighted_preset == "fsdp", "the cursor where training is")
        assert "wide" not in rows.shown, "presets that do not fit are folded away"
        rows.highlighted = rows.get_option_index("# do not fit")
        await pilot.press("enter")
        await until(lambda: "wide" in rows.shown, "the presets that do not fit")
        rows.highlighted = rows.get_option_index("wide")
        assert str(rows.highlighted_option.prompt).startswith("✗ wide")
        await pilot.press("enter")
        await until(lambda: app.state.failed_switch, "the refusal")
        assert "needs 16 devices, 8 found" in app.state.failed_switch.problems[0]
        step = app.state.step
        await until(lambda: app.state.step > step + 3, "more steps")
        assert (app.state.preset, app.state.phase) == ("fsdp", Phase.TRAINING)
        assert "cannot switch to wide" in app.screen.query_one("LastSwitch").lines[0].plain
        app.client.kill_engine()
        await until(lambda: app.state.phase is Phase.LOST, "the loss")
        await until(lambda: "✗ crashed" in status(app), "the status")
        assert "SIGKILL" in " ".join(line.plain for line in app.screen.query_one("LastSwitch").lines)
        await pilot.press("space", "s", "enter", "2")
        await until(lambda: app.screen.query("DataTable") and app.screen.query_one("DataTable").row_count, "the table")
        await pilot.press("d")
    assert app.return_code == 1
    assert "SIGKILL" in app.lifecycle.exit_lines()[0]
