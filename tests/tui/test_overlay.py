"""The losses of other runs in the loss chart."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardtui.engine.wire.events import EngineStopped, StepsDone, TrainingStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.screens.overlay import OverlayScreen
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.state.run_state import Phase
from shardtui.tui.widgets.loss_chart import LossChart
from shardtui.tui.widgets.loss_plot import CURVE_STYLE, Curve, Plot, draw_plot
from shardtui.tui.widgets.other_curves import MAX_CURVES
from textual.pilot import Pilot

from ..recorded import losses_of, recorded_run
from .test_app import shown, until

Scenario = Callable[[ShardtuiApp, Pilot[None], LossChart], Coroutine[Any, Any, None]]
LOSSES = st.lists(st.floats(1e-6, 1e6) | st.just(math.nan), max_size=100)


def curve(values: list[float], letter: str = "A", name: str = "other-1") -> Curve:
    return Curve(name, losses_of(values), letter, "$warning")


def drawn(own: list[float], *others: Curve, width: int = 67, height: int = 14, **options: Any) -> list[str]:
    return [line.plain for line in draw_plot(Plot(losses_of(own), others, **options), width, height)]


def test_a_legend_names_each_curve_with_its_last_loss() -> None:
    lines = drawn([2.0] * 20, curve([3.0] * 20), curve([math.nan], "B", "lost-1"), curve([], "C", "new-1"))
    assert lines[0] == "A other-1 3   B lost-1 –   C new-1 –"
    assert drawn([2.0] * 20)[0] != "", "no line of the chart is lost without other runs"
    narrow = drawn([2.0] * 20, curve([3.0] * 20), curve([4.0] * 20, "B", "another-2"), width=24)
    assert narrow[:2] == ["A other-1 3", "B another-2 4"]


def test_each_curve_ends_in_its_letter() -> None:
    lines = drawn([2.0] * 20, curve([3.0] * 20), curve([4.0] * 10, "B"), width=27)
    ends = {
        letter: (line.index(letter), row) for row, line in enumerate(lines[1:]) for letter in "AB" if letter in line
    }
    assert ends["A"][0] == 7 + 19
    assert ends["B"][0] == 7 + 9
    assert ends["B"][1] < ends["A"][1], "a higher loss is drawn higher"


def test_equal_curves_have_their_letters_side_by_side() -> None:
    lines = drawn([2.0] * 20, curve([3.0] * 20), curve([3.0] * 20, "B"), width=27)
    assert any("BA" in line for line in lines[1:])


def test_the_own_curve_is_drawn_over_the_others() -> None:
    lines = draw_plot(Plot(losses_of([2.0] * 20), [curve([2.0] * 15)]), 67, 14)
    row = next(line for line in lines[1:] if "A" in line.plain)
    styles = {span.style for span in row.spans}
    assert CURVE_STYLE in styles
    assert styles <= {CURVE_STYLE, "bold $warning", "$foreground 60%", "$accent"}, "the other one is below it"


def test_the_axes_fit_the_longest_and_highest_curve() -> None:
    lines = drawn([2.0] * 10, curve([9.0] * 80))
    assert lines[-1].split()[-1] == "80"
    assert float(next(line for line in lines if "┤" in line).split()[0]) >= 9
    assert "A other-1 9" in drawn([], curve([9.0] * 80))[0], "also before the first step of this run"


@pytest.mark.parametrize("is_log", [False, True])
@example(own=[math.nan], others=[], width=11, height=3)
@given(own=LOSSES, others=st.lists(LOSSES, max_size=3), width=st.integers(0, 120), height=st.integers(0, 40))
def test_any_curves_are_drawn_within_any_size(
    own: list[float], others: list[list[float]], width: int, height: int, is_log: bool
) -> None:
    curves = [curve(values, letter, "x") for values, letter in zip(others, "ABC", strict=False)]
    lines = drawn(own, *curves, width=width, height=height, is_log=is_log)
    assert len(lines) <= max(height, 1)
    assert all(len(line) <= width for line in lines if "step" not in line and not line.startswith(("A", "B", "C")))


def over(directory: RunDirectory, scenario: Scenario) -> None:
    async def play() -> None:
        async with shown(directory, False, (140, 40)) as (app, pilot):
            await until(lambda: app.state.phase is Phase.STOPPED and app.screen.query(LossChart), "the history")
            await scenario(app, pilot, app.screen.query_one(LossChart))

    asyncio.run(play())


async def opened(app: ShardtuiApp, pilot: Pilot[None]) -> OverlayScreen:
    """Presses `i` and waits for the dialog and its figures."""
    await pilot.press("i")
    await until(lambda: isinstance(app.screen, OverlayScreen), "the dialog")
    screen = app.screen
    assert isinstance(screen, OverlayScreen)
    await until(lambda: len(screen.list.summaries) == len(screen.list.runs), "the figures")
    await pilot.pause()
    return screen


def steps(last: int, *losses: float | None) -> StepsDone:
    return StepsDone(step=last, losses=list(losses), step_seconds=[0.1] * len(losses), input_wait_seconds=0.0)


def test_i_draws_the_marked_runs_until_they_are_unmarked(home: Path) -> None:
    stopped = EngineStopped(step=6, reason="stopped")
    resumed = recorded_run("again-1", TrainingStarted(preset="tp", step=2), steps(6, 1.9, 1.8, 1.7, 1.6), stopped)
    recorded_run("other-1")
    own = recorded_run("own-1")

    async def scenario(app: ShardtuiApp, pilot: Pilot[None], chart: LossChart) -> None:
        screen = await opened(app, pilot)
        assert set(screen.list.runs) == {"again-1", "other-1"}, "not the run itself"
        screen.list.highlighted = screen.list.get_option_index("again-1")
        await pilot.press("space")
        assert "[x] again-1" in str(screen.list.get_option("again-1").prompt)
        await pilot.press("escape")
        await until(lambda: chart.others, "the curve")
        assert list(chart.others[0].losses) == pytest.approx([4.0, 3.0, 1.9, 1.8, 1.7, 1.6])
        assert chart.lines[0].plain == "A again-1 1.6"
        screen = await opened(app, pilot)
        assert screen.list.chosen == {"again-1"}
        screen.list.highlighted = screen.list.get_option_index("other-1")
        await pilot.press("enter", "i")
        await until(lambda: len(chart.others) == 2, "the other curve")
        assert chart.lines[0].plain == "A again-1 1.6   B other-1 1"
        chart.put_cursor(2)
        assert chart.cursor_text() == "step 3: 2.0000 · A 1.9000 · B 2.0000"
        screen = await opened(app, pilot)
        screen.list.highlighted = screen.list.get_option_index("again-1")
        await pilot.press("space", "escape")
        await until(lambda: [curve.letter for curve in chart.others] == ["B"], "its end")
        assert chart.lines[0].plain == "B other-1 1", "a letter stays with its run"

    assert resumed.path.is_dir()
    over(own, scenario)


def test_keys_in_a_burst_mark_the_runs_they_were_pressed_on(home: Path) -> None:
    recorded_run("other-1")
    recorded_run("other-2")
    own = recorded_run("own-1")

    async def scenario(app: ShardtuiApp, pilot: Pilot[None], chart: LossChart) -> None:
        screen = await opened(app, pilot)
        for key in ("enter", "down", "space"):
            app.simulate_key(key)
        await until(lambda: screen.list.chosen == {"other-1", "other-2"}, "both marks")
        await pilot.press("escape")

    over(own, scenario)


def test_a_run_that_cannot_be_read_is_drawn_without_losses(home: Path) -> None:
    other, own = recorded_run("other-1"), recorded_run("own-1")

    async def scenario(app: ShardtuiApp, pilot: Pilot[None], chart: LossChart) -> None:
        await opened(app, pilot)
        other.events.unlink()
        await pilot.press("space", "escape")
        await until(lambda: chart.others, "the entry")
        assert chart.lines[0].plain == "A other-1 –"

    over(own, scenario)


def test_there_are_at_most_as_many_curves_as_letters(home: Path) -> None:
    for number in range(MAX_CURVES + 1):
        recorded_run(f"other-{number}")
    own = recorded_run("own-1")

    async def scenario(app: ShardtuiApp, pilot: Pilot[None], chart: LossChart) -> None:
        screen = await opened(app, pilot)
        for _ in range(MAX_CURVES):
            await pilot.press("space", "down")
        assert not app._notifications
        await pilot.press("space")
        await until(lambda: app._notifications, "the warning")
        assert screen.list.chosen and len(screen.list.chosen) == MAX_CURVES
        await pilot.press("escape")
        await until(lambda: len(chart.others) == MAX_CURVES, "the curves")
        assert len({curve.letter for curve in chart.others}) == MAX_CURVES

    over(own, scenario)


def test_without_other_runs_the_dialog_says_so(home: Path) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot[None], chart: LossChart) -> None:
        screen = await opened(app, pilot)
        assert not screen.list.runs
        await pilot.press("space", "enter", "escape")
        await until(lambda: isinstance(app.screen, RunScreen), "the view")
        assert not chart.others

    over(recorded_run("own-1"), scenario)
