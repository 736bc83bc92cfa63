"""The parts of the step over the course of a run."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.wire.events import PartsMeasured, Profiled
from shardtui.engine.wire.step_breakdown import PartTime
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.parts_history import folded, history_lines

from ..recorded import recorded_run
from .test_app import until
from .test_time import breakdown


def measured(step: int, waiting: float = 0.0, preset: str = "dp") -> PartsMeasured:
    """A step of a second: products, and waiting in an all-reduce."""
    times = {"matrix products": 1 - waiting, "all-reduce over data: waiting": waiting}
    parts = [PartTime(name=name, seconds=time, share=time) for name, time in times.items()]
    return PartsMeasured(step=step, preset=preset, step_seconds=1.0, parts=parts, pause_seconds=2.5)


@given(st.lists(st.sampled_from(["dp", "tp"]), max_size=60), st.integers(1, 30))
def test_folding_keeps_order_and_presets_apart(presets: list[str], rows: int) -> None:
    found = [measured(step, preset=preset) for step, preset in enumerate(presets)]
    groups = folded(found, rows)
    assert len(groups) <= rows
    flat = [each for group in groups for each in group]
    assert flat == found[len(found) - len(flat) :], "the latest, in order"
    assert all(len({each.preset for each in group}) == 1 for group in groups)
    switches = sum(one != other for one, other in pairwise(presets))
    assert flat == found or switches >= rows


def test_a_bar_is_the_mean_of_its_breakdowns() -> None:
    found = [measured(10 * (step + 1), waiting=0.1 * step) for step in range(8)]
    lines = [line.plain for line in history_lines(found, 8 + 100 + 9, 4)]
    assert [line.split()[0] for line in lines] == ["20", "40", "60", "80"]
    assert [line.count(":") for line in lines] == [5, 25, 45, 65]
    assert all(line.endswith("    1.0 s") for line in lines)


def test_the_history_has_profiles_too_and_no_failures() -> None:
    state = RunState()
    failed = PartsMeasured(step=3, preset="dp", step_seconds=None, parts=[], pause_seconds=1.0, problem="no step")
    profiled = Profiled(step=9, steps=5, directory="/x", preset="dp", breakdown=breakdown(idle=0.1))
    for event in (measured(2), failed, profiled):
        apply(state, event)
    assert [each.step for each in state.measured] == [2, 9]
    assert state.profiled == profiled


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            measured(1200, 0.25),
            "step 1,200 of 1.0 s: matrix products 75 %, all-reduce over data: waiting 25 %; paused 2.5 s",
        ),
        (
            PartsMeasured(step=3, preset="dp", step_seconds=None, parts=[], pause_seconds=1.0, problem="cut off"),
            "no parts of step 3: cut off",
        ),
    ],
)
def test_the_log_has_a_line(event: PartsMeasured, words: str) -> None:
    assert event.line.startswith(words)


async def opened(awaited: str, *events: PartsMeasured) -> str:
    app = ShardtuiApp(EngineClient(recorded_run("tiny-1", *events)), starts=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("9")
        await until(lambda: app.current_mode == "time" and app.screen.query("DataTable"), "the view")
        await pilot.pause()
        await pilot.press("h")
        await until(lambda: awaited in screen_text(app), "the history below the bar")
        return screen_text(app)


def test_a_key_shows_the_history(home: Path) -> None:
    text = asyncio.run(opened("1.0 s │", measured(100), measured(200, 0.5)))
    rows = [line.strip("│ ") for line in text.splitlines() if line.endswith("1.0 s │")]
    assert [row.split()[0] for row in rows] == ["100", "200"]
    assert ":" not in rows[0] and rows[1].count(":") > 20


def test_without_breakdowns_the_history_says_how_to_get_them(home: Path) -> None:
    asyncio.run(opened("--profile-every"))
