"""The tour: each lesson waits for what it asks, on a live run."""

from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.state.run_state import RunState
from shardtui.tui.state.tour import Goal, Lesson, Tour
from shardtui.tui.widgets.tab_bar import TABS
from textual.pilot import Pilot

from ..conftest import tiny_config
from ..recorded import recorded_run
from ..terminal import Terminal
from .test_app import choose, finished, shown, stop, until

KEYS = {tab.title.lower(): tab.key for tab in TABS}


def shown_texts(app: ShardtuiApp) -> list[str]:
    strip = app.screen.query("TourStrip")
    return [text for text, _ in strip.first().texts] if strip and strip.first().display else []


async def follow_request(app: ShardtuiApp, pilot: Pilot[None], lesson: Lesson) -> None:
    """Presses the keys that the lesson asks for."""

    async def press(key: str, asks: str) -> None:
        assert shown_texts(app)[-1].startswith(asks)
        await pilot.press(key)

    match lesson.goal:
        case Goal("open", view):
            await press(KEYS[view], f"Press {KEYS[view]} for ")
        case Goal("switch", preset):
            if app.current_mode != "watch":
                await press("1", "Press 1 for Watch, move")
            await choose(app, pilot, preset)
        case Goal("follow"):
            await press("f", "Press f to follow the device under the cursor.")
        case Goal("profile"):
            await press("p", "Press p to trace five steps.")
        case Goal("visit", page, view):
            await press(KEYS[view], f"Press {KEYS[view]} for ")
            key = {"memory": "m", "origin": "enter"}[page]
            await until(lambda: f"Press {key}" in shown_texts(app)[-1], "the page's key")
            await pilot.press(key)
            await until(lambda: not isinstance(app.screen, RunScreen), "the page")
            await pilot.press("escape")
            await until(lambda: isinstance(app.screen, RunScreen), "the view")
        case _:
            pass


@pytest.mark.slow
async def test_every_lesson_ends_when_its_keys_are_pressed(home: Path) -> None:
    tour = Tour()
    async with shown(run_directory.create(tiny_config()), True, tour=tour) as (app, pilot):
        for number, lesson in enumerate(tour.lessons[:-1]):
            await until(lambda lesson=lesson: lesson.text in " ".join(shown_texts(app)), lesson.text)
            await follow_request(app, pilot, lesson)
            await until(lambda lesson=lesson: tour.lesson is not lesson, f"the end of: {lesson.text}")
            assert tour.position == number + 1
        await pilot.press("ctrl+n")
        assert (tour.lesson, shown_texts(app)) == (None, [])
        await pilot.press("1")
        assert not shown_texts(app)
        await stop(app)


async def test_a_lesson_can_be_skipped_and_says_the_users_keys(home: Path) -> None:
    keymap = {"next-lesson": "f5", "mesh.follow": "t"}
    async with shown(recorded_run(), keymap=keymap, tour=Tour()) as (app, pilot):
        await until(lambda: "Press 2 for Arrays. (2 of 23, f5 skips)" in shown_texts(app), "the second lesson")
        await pilot.press("f5")
        await until(lambda: "Press 3 for Mesh. (3 of 23, f5 skips)" in shown_texts(app), "the third lesson")
        await pilot.press("3")
        await until(lambda: "Press t to follow" in shown_texts(app)[-1], "the view's key")
    async with finished(recorded_run("tiny-2")) as (app, pilot):
        await pilot.press("ctrl+n")
        assert {notice.message for notice in app._notifications} == {"only `shardtui tour` has lessons"}


def test_a_goal_that_is_met_already_ends_its_lesson() -> None:
    goals = Goal("open", "mesh"), Goal("switch", "tp"), Goal("follow")
    tour, state = Tour([Lesson("", "", goal) for goal in goals]), RunState()
    state.preset = "tp"
    tour.advance("watch", state)
    assert tour.position == 0
    tour.advance("mesh", state)
    assert tour.position == 2
    state.followed = 0
    tour.advance("mesh", state)
    assert tour.lesson is None


@pytest.mark.slow
def test_the_tour_starts_a_run_of_its_own(home: Path) -> None:
    terminal = Terminal("tour")
    terminal.until(lambda text: "(1 of 23, ^n skips)" in text, "the first lesson")
    terminal.until(lambda text: "2 of 23" in text, "the run that trains")
    terminal.send("d")
    assert terminal.exit_code(60) == 0
    (run,) = run_directory.all_runs()
    assert (run.name, run.config.devices, run.config.platform) == ("tour-1", 8, "cpu")
