"""Recorded runs played in the UI: at the pace of the recording, without an engine and without commands."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from shardtui.engine.wire.events import EngineStopped, Event, StepsDone, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli.main import main
from shardtui.tui.client.replay import Replay
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.state.run_state import Phase
from textual.pilot import Pilot

from ..recorded import events_in, record, recorded_run, started, steps
from ..terminal import Terminal
from .test_app import listed_presets, shown, status, until
from .test_views import press

NOON = 1.75e9
HOURS = 3600.0
STOPPED = EngineStopped(step=1, reason="stopped", time=NOON)


def done(last: int, seconds: float) -> StepsDone:
    return steps(last, 2.0, time=NOON + seconds)


def start(seconds: float) -> list[Event]:
    return [started(time=NOON + seconds), TrainingStarted(preset="dp", time=NOON + seconds)]


@asynccontextmanager
async def over(directory: RunDirectory, speed: float) -> AsyncIterator[tuple[ShardtuiApp, Pilot[None]]]:
    async with shown(Replay(directory.events, speed), size=(100, 30)) as (app, pilot):
        await listed_presets(app)
        yield app, pilot


@pytest.mark.parametrize(
    ("events", "speed", "least"),
    [
        ([*start(0), done(1, 1.0), done(2, 2.0)], 4, 0.5),
        ([*start(0), done(1, 0), STOPPED, *start(20 * HOURS), done(2, 20 * HOURS)], 1, 0),
        ([*start(0), done(1, 5 * HOURS), done(2, 9 * HOURS)], 0, 0),
        ([done(7, 0), done(8, 0.1)], 1, 0),
    ],
    ids=["four times the pace", "time without an engine", "speed 0", "a recording that begins in the middle"],
)
async def test_events_are_played_at_their_pace_times_the_speed(
    home: Path, events: list[Event], speed: float, least: float
) -> None:
    directory = recorded_run()
    record(directory, *events)
    began = time.monotonic()
    found = [event async for events in Replay(directory.events, speed).events() for event in events]
    assert least <= time.monotonic() - began < 5
    assert found == events_in(directory.events)


async def test_space_pauses_and_resumes(home: Path) -> None:
    directory = recorded_run()
    record(directory, *start(0), *(done(number, number / 10) for number in range(1, 1000)))
    async with over(directory, 1) as (app, pilot):
        await until(lambda: app.state.step >= 2, "steps")
        await until(lambda: "replay ×1" in status(app), "the speed")
        await press(pilot, "space")
        paused_at = app.state.step
        await pilot.pause(0.25)
        assert app.state.step == paused_at
        assert "replay paused" in status(app)
        assert app.state.phase is Phase.TRAINING, "the recorded run was not paused"
        await pilot.press("space", "right_square_bracket", "right_square_bracket")
        await until(lambda: app.state.step > paused_at + 3, "more steps")
        assert "replay ×4" in status(app)
        await pilot.press("left_square_bracket")
        assert app.state.playback and app.state.playback.speed == 2


async def test_no_key_sends_a_command_or_starts_an_engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded_run()
    before = sorted((path, path.stat().st_mtime_ns) for path in directory.path.rglob("*"))
    sent: list[object] = []
    monkeypatch.setattr("shardtui.tui.client.connection.Connection.send", lambda _, command: sent.append(command))
    monkeypatch.setattr("shardtui.tui.client.engine_client.StartedEngine", sent.append)
    async with over(directory, 0) as (app, pilot):
        await until(lambda: app.state.phase is Phase.STOPPED, "the end")
        await until(lambda: "replay ended" in status(app), "the end in the header")
        for key in ("s", "c", "w", "p", "r", "x", "8", "enter", "6", "m", "1"):
            await pilot.press(key)
            assert isinstance(app.screen, RunScreen), f"{key} opened a dialog"
        assert app.current_mode == "watch"
        assert {notice.message for notice in app._notifications} == {"this is a replay: it sends no commands"}
        assert app.state.phase is Phase.STOPPED
    assert sent == []
    assert sorted((path, path.stat().st_mtime_ns) for path in directory.path.rglob("*")) == before
    assert app.lifecycle.exit_lines() == []


async def test_while_it_plays_no_engine_is_asked_either(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch precompiles, Arrays inspects and Compare estimates while a run is live."""
    asked: list[object] = []
    monkeypatch.setattr(Replay, "send", lambda _, command: asked.append(command))
    async with over(recorded_run("tiny-1", done(5, HOURS)), 1) as (app, pilot):
        await until(lambda: app.state.step == 4, "the steps")
        for view in "2561":
            await press(pilot, view)
        assert app.lookups._estimating is None
        assert asked == []


async def test_damaged_lines_are_left_out_and_counted(home: Path) -> None:
    directory = recorded_run()
    lines = directory.events.read_bytes().splitlines(True)
    directory.events.write_bytes(b"".join([*lines[:2], b"\xff{not json\n", *lines[2:], b'{"type":"Unheard"}\n']))
    async with over(directory, 0) as (app, _):
        await until(lambda: app._notifications, "the notice")
        assert app.state.step == 4
    assert app.lifecycle.exit_lines() == [f"{directory.events}: left out 2 unreadable lines"]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("tiny-2", "did you mean tiny-1?"),
        ("Über", "run 'Über': a name has 1 to 64 characters"),
        ("{home}/nowhere/events.jsonl", "nowhere/events.jsonl: no such file: name a run"),
        ("{home}", "events.jsonl: no such file: the run has recorded nothing yet"),
        ("{home}/empty.jsonl", "empty.jsonl: no event in it"),
        ("{home}/text.jsonl", "text.jsonl: none of its 2 lines is an event"),
        ("/dev/null", "a character device, not a regular file"),
        ("tiny-1", "the UI needs a terminal"),
        ("{home}/state/shardtui/runs/tiny-1", "the UI needs a terminal"),
        ("{home}/state/shardtui/runs/tiny-1/events.jsonl", "the UI needs a terminal"),
    ],
)
def test_wrong_input_gets_a_message(home: Path, capsys: pytest.CaptureFixture[str], place: str, says: str) -> None:
    recorded_run()
    (home / "empty.jsonl").touch()
    (home / "text.jsonl").write_text("to be\nor not\n")
    assert main(["replay", place.format(home=home)]) == 2
    assert says in capsys.readouterr().err


def test_on_a_terminal(home: Path) -> None:
    recorded_run()
    terminal = Terminal("replay", "tiny-1", "--speed=0")
    terminal.until(lambda text: "replay ended" in text and "■ stopped" in text and "1 Watch" in text, "the end")
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert terminal.is_restored()
