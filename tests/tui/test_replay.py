"""Recorded runs played in the UI: at the pace of the recording, without an engine and without commands."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import AnyEvent, EngineStarted, EngineStopped, Event, StepsDone, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli.main import main
from shardtui.tui.client.replay import Replay
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.state.run_state import Phase
from shardtui.tui.widgets.preset_list import PresetList
from textual.pilot import Pilot

from ..conftest import tiny_config
from ..recorded import record, recorded_run
from ..terminal import Terminal
from .test_app import status, until

NOON = 1.75e9
HOURS = 3600.0
STOPPED = EngineStopped(step=1, reason="stopped", time=NOON)


def steps(last: int, seconds: float) -> StepsDone:
    return StepsDone(step=last, losses=[2.0], step_seconds=[0.1], input_wait_seconds=0.0, time=NOON + seconds)


def start(seconds: float) -> list[Event]:
    began = EngineStarted(protocol=1, pid=1, config=tiny_config(), time=NOON + seconds)
    return [began, TrainingStarted(preset="dp", time=NOON + seconds)]


def timed(*events: Event) -> RunDirectory:
    """Records a run whose events have times."""
    directory = recorded_run()
    record(directory, *events)
    return directory


def played(directory: RunDirectory, speed: float) -> tuple[list[AnyEvent], float]:
    """Returns the events of a replay and the seconds that it took."""

    async def play() -> list[AnyEvent]:
        return [event async for events in Replay(directory.events, speed).events() for event in events]

    began = time.monotonic()
    return asyncio.run(play()), time.monotonic() - began


def over(
    directory: RunDirectory, speed: float, scenario: Callable[[ShardtuiApp, Pilot[None]], Coroutine[Any, Any, None]]
) -> ShardtuiApp:
    app = ShardtuiApp(Replay(directory.events, speed), starts=False)

    async def run() -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            await until(lambda: app.screen.query(PresetList), "the view")
            await scenario(app, pilot)

    asyncio.run(run())
    return app


def test_events_are_played_at_their_pace_times_the_speed(home: Path) -> None:
    directory = timed(*start(0), steps(1, 1.0), steps(2, 2.0))
    events, seconds = played(directory, speed=4)
    assert events == [event for events in LogReader(directory.events).read() for event in events]
    assert 0.5 <= seconds < 5


@pytest.mark.parametrize(
    ("events", "speed", "reached"),
    [
        pytest.param(
            [*start(0), steps(1, 0), STOPPED, *start(20 * HOURS), steps(2, 20 * HOURS)],
            1,
            [1, 2],
            id="the time without an engine is left out",
        ),
        pytest.param([*start(0), steps(1, 5 * HOURS), steps(2, 9 * HOURS)], 0, [1, 2], id="speed 0"),
        pytest.param([steps(7, 0), steps(8, 0.1)], 1, [7, 8], id="a recording that begins in the middle"),
    ],
)
def test_what_is_not_waited_for(home: Path, events: list[Event], speed: float, reached: list[int]) -> None:
    found, seconds = played(timed(*events), speed)
    assert len(found) == len(events)
    assert [event.step for event in found if isinstance(event, StepsDone)] == reached
    assert seconds < 5


def test_space_pauses_and_resumes(home: Path) -> None:
    reports = [steps(number, number / 10) for number in range(1, 1000)]

    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        await until(lambda: app.state.step >= 2, "steps")
        await until(lambda: "replay ×1" in status(app), "the speed")
        await pilot.press("space")
        await pilot.pause()
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

    over(timed(*start(0), *reports), 1, scenario)


def test_no_key_sends_a_command_or_starts_an_engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded_run()
    before = sorted((path, path.stat().st_mtime_ns) for path in directory.path.rglob("*"))
    sent: list[object] = []
    monkeypatch.setattr("shardtui.tui.client.connection.Connection.send", lambda _, command: sent.append(command))
    monkeypatch.setattr("shardtui.tui.client.engine_client.StartedEngine", sent.append)

    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        await until(lambda: app.state.phase is Phase.STOPPED, "the end")
        await until(lambda: "replay ended" in status(app), "the end in the header")
        for key in ("s", "c", "w", "p", "r", "x", "8", "enter", "6", "m", "1"):
            await pilot.press(key)
            assert isinstance(app.screen, RunScreen), f"{key} opened a dialog"
        assert app.current_mode == "watch"
        assert {notice.message for notice in app._notifications} == {"this is a replay: it sends no commands"}
        assert app.state.phase is Phase.STOPPED

    app = over(directory, 0, scenario)
    assert sent == []
    assert sorted((path, path.stat().st_mtime_ns) for path in directory.path.rglob("*")) == before
    assert app.exit_lines() == []


def test_while_it_plays_no_engine_is_asked_either(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch precompiles, Arrays inspects and Compare estimates while a run is live."""
    asked: list[object] = []
    monkeypatch.setattr(Replay, "send", lambda _, command: asked.append(command))

    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        await until(lambda: app.state.step == 4, "the steps")
        for view in "2561":
            await pilot.press(view)
            await pilot.pause()
        assert app.lookups._estimating is None
        assert asked == []

    over(recorded_run("tiny-1", steps(5, HOURS)), 1, scenario)


def test_damaged_lines_are_left_out_and_counted(home: Path) -> None:
    directory = recorded_run()
    lines = directory.events.read_bytes().splitlines(True)
    directory.events.write_bytes(b"".join([*lines[:2], b"\xff{not json\n", *lines[2:], b'{"type":"Unheard"}\n']))

    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        await until(lambda: app._notifications, "the notice")
        assert app.state.step == 4

    app = over(directory, 0, scenario)
    assert app.exit_lines() == [f"{directory.events}: left out 2 unreadable lines"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tiny-2"], "run tiny-2: no such run"),
        (["tiny-2"], "did you mean tiny-1?"),
        (["Über"], "run 'Über': a name has 1 to 64 characters"),
        (["{home}/nowhere/events.jsonl"], "nowhere/events.jsonl: no such file: name a run"),
        (["{home}"], "events.jsonl: no such file: the run has recorded nothing yet"),
        (["{home}/empty.jsonl"], "empty.jsonl: no event in it"),
        (["{home}/text.jsonl"], "text.jsonl: none of its 2 lines is an event"),
        (["/dev/null"], "a character device, not a regular file"),
        (["tiny-1"], "the UI needs a terminal"),
        (["{home}/state/shardtui/runs/tiny-1"], "the UI needs a terminal"),
        (["{home}/state/shardtui/runs/tiny-1/events.jsonl"], "the UI needs a terminal"),
    ],
)
def test_wrong_input_gets_a_message(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    recorded_run()
    (home / "empty.jsonl").touch()
    (home / "text.jsonl").write_text("to be\nor not\n")
    assert main(["replay", *(argument.format(home=home) for argument in arguments)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("speed", ["-1", "nan", "inf", "fast"])
def test_a_speed_is_a_number_from_0(home: Path, capsys: pytest.CaptureFixture[str], speed: str) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "tiny-1", f"--speed={speed}"])
    assert f"'{speed}' is not a speed, such as 10" in capsys.readouterr().err


def test_on_a_terminal(home: Path) -> None:
    recorded_run()
    terminal = Terminal("replay", "tiny-1", "--speed=0")
    terminal.until(lambda text: "replay ended" in text and "■ stopped" in text and "1 Watch" in text, "the end")
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert terminal.is_restored()
