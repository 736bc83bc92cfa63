"""The tour: each lesson waits for what it asks, on a live run."""

import asyncio
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli.main import main
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.tour import Follow, Lesson, Open, Seen, SwitchTo, Tour
from shardtui.tui.widgets.preset_list import PresetList
from shardtui.tui.widgets.tab_bar import TABS
from shardtui.tui.widgets.tour_strip import TourStrip
from textual.pilot import Pilot

from ..conftest import tiny_config
from ..recorded import recorded_run
from ..terminal import Terminal
from .test_app import choose, until

KEYS = {tab.title.lower(): tab.key for tab in TABS}


def shown_texts(app: ShardtuiApp) -> list[str]:
    strip = app.screen.query(TourStrip)
    return [text for text, _ in strip.first().texts] if strip and strip.first().display else []


async def follow_request(app: ShardtuiApp, pilot: Pilot[None], lesson: Lesson) -> None:
    """Presses the keys that the lesson asks for."""
    match lesson.goal:
        case Open(view):
            assert shown_texts(app)[-1].startswith(f"Press {KEYS[view]} for ")
            await pilot.press(KEYS[view])
        case SwitchTo(preset):
            if app.current_mode != "watch":
                assert shown_texts(app)[-1].startswith("Press 1 for Watch, move")
                await pilot.press("1")
            await choose(app, pilot, preset)
        case Follow():
            assert shown_texts(app)[-1].startswith("Press f to follow the device under the cursor.")
            await pilot.press("f")
        case _:
            pass


@pytest.mark.slow
def test_every_lesson_ends_when_its_keys_are_pressed(home: Path) -> None:
    tour = Tour()

    async def scenario() -> None:
        app = ShardtuiApp(EngineClient(run_directory.create(tiny_config())), starts=True, tour=tour)
        async with app.run_test(size=(80, 24)) as pilot:
            try:
                for number, lesson in enumerate(tour.lessons[:-1]):
                    await until(lambda lesson=lesson: lesson.text in " ".join(shown_texts(app)), lesson.text)
                    await follow_request(app, pilot, lesson)
                    await until(lambda lesson=lesson: tour.lesson is not lesson, f"the end of: {lesson.text}")
                    assert tour.position == number + 1
                await pilot.press("ctrl+n")
                assert (tour.lesson, shown_texts(app)) == (None, [])
                await pilot.press("1")
                assert not shown_texts(app)
            finally:
                app.client.kill_engine()

    asyncio.run(scenario())


def test_a_lesson_can_be_skipped_and_says_the_users_keys(home: Path) -> None:
    async def scenario() -> None:
        app = ShardtuiApp(
            EngineClient(recorded_run()), starts=False, keymap={"next-lesson": "f5", "mesh.follow": "t"}, tour=Tour()
        )
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: "Press 2 for Arrays. (2 of 21, f5 skips)" in shown_texts(app), "the second lesson")
            await pilot.press("f5")
            await until(lambda: "Press 3 for Mesh. (3 of 21, f5 skips)" in shown_texts(app), "the third lesson")
            await pilot.press("3")
            await until(lambda: "Press t to follow" in shown_texts(app)[-1], "the view's key")

    asyncio.run(scenario())


def test_without_a_tour_its_key_says_what_has_lessons(home: Path) -> None:
    async def scenario() -> None:
        app = ShardtuiApp(EngineClient(recorded_run()), starts=False)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
            assert not app.screen.query(TourStrip)
            await pilot.press("ctrl+n")
            assert {notice.message for notice in app._notifications} == {"only `shardtui tour` has lessons"}

    asyncio.run(scenario())


def test_a_goal_that_is_met_already_ends_its_lesson() -> None:
    tour = Tour([Lesson("", "", Open("mesh")), Lesson("", "", SwitchTo("tp")), Lesson("", "", Follow())])
    tour.advance(Seen("watch", "tp", 0, None))
    assert tour.position == 0
    tour.advance(Seen("mesh", "tp", 0, None))
    assert tour.position == 2
    tour.advance(Seen("mesh", "tp", 0, 0))
    assert tour.lesson is None


def test_the_tour_needs_a_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour"]) == 2
    assert "the UI needs a terminal" in capsys.readouterr().err
    assert run_directory.all_runs() == []


@pytest.mark.slow
def test_the_tour_starts_a_run_of_its_own(home: Path) -> None:
    terminal = Terminal("tour")
    terminal.until(lambda text: "(1 of 21, ^n skips)" in text, "the first lesson")
    terminal.until(lambda text: "2 of 21" in text, "the run that trains")
    terminal.send("d")
    assert terminal.exit_code(60) == 0
    (run,) = run_directory.all_runs()
    assert isinstance(run, RunDirectory)
    assert (run.name, run.config.devices, run.config.platform) == ("tour-1", 8, "cpu")
