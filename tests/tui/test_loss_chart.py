"""The loss chart as text, and the losses of other runs in it."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardtui.engine.base import formatting
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import EngineStopped, TrainingStarted
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.screens.overlay import OverlayScreen
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.state.losses import BLOCK, Evaluations
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.loss_chart import LossChart
from shardtui.tui.widgets.loss_plot import CURVE_STYLE, Curve, Plot, draw_plot, right_edge
from shardtui.tui.widgets.other_curves import MAX_CURVES
from textual.pilot import Pilot

from ..recorded import losses_of, recorded_run, steps
from .test_app import finished, until

LOSSES = st.lists(st.floats(1e-6, 1e6) | st.just(math.nan), max_size=300)


def curve(values: list[float], letter: str = "A", name: str = "other-1") -> Curve:
    return Curve(name, losses_of(values), letter, "$warning")


def drawn(own: list[float], *others: Curve, width: int = 67, height: int = 14, **options: Any) -> list[str]:
    return [line.plain for line in draw_plot(Plot(losses_of(own), others, **options), width, height)]


def braille(lines: list[str]) -> list[tuple[int, int]]:
    return [(x, y) for y, line in enumerate(lines) for x, c in enumerate(line) if "\u2800" < c <= "\u28ff"]


@given(st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan), max_size=20), st.data())
def test_the_mean_of_any_range_ignores_losses_that_are_not_finite(values: list[float], data: st.DataObject) -> None:
    values = (values or [1.0]) * BLOCK
    losses = losses_of(values[:-7])
    losses.extend(values[-7:])
    kept = data.draw(st.integers(0, len(values)))
    losses.rewind_to(kept)
    losses.extend(values[kept:])
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    finite = [value for value in values[begin:end] if math.isfinite(value)]
    mean = losses.mean(begin, end)
    assert mean is None if not finite else mean == pytest.approx(sum(finite) / len(finite), rel=1e-9, abs=1e-6)


@given(st.integers(1, 10**9))
def test_the_right_edge_is_close_and_rarely_moves(steps: int) -> None:
    edge = right_edge(steps)
    assert steps <= edge <= max(20, steps * 1.34)
    assert right_edge(edge) == edge


def test_a_falling_loss_falls_without_gaps_also_next_to_losses_that_are_not_finite() -> None:
    lines = drawn([5 - n / 20 for n in range(80)])
    dots = braille(lines)
    assert min(dots)[1] < max(dots)[1]
    assert len({x for x, _ in dots}) == max(x for x, _ in dots) - 7 + 1, "a gap in the curve"
    assert lines[-1].split() == ["0", "20", "40", "60", "80"]
    assert float(lines[0].split()[0]) >= 5
    interrupted = drawn([2.0] * 10 + [math.nan] * 80 + [1.0] * 10, width=107)
    assert {7, 16, 98, 106} <= {x for x, _ in braille(interrupted)}


def test_a_switch_is_marked_at_its_step() -> None:
    lines = drawn([2.0] * 100, width=107, marks=[(50, "fsdp"), (75, "tp")])
    assert lines[0].index("┊fsdp") == 7 + 50
    assert lines[0].index("┊tp") == 7 + 75
    assert all(line[57] in "┊⠤⠒⣀⠉" for line in lines[:-1])
    edge = drawn([2.0] * 100, width=107, marks=[(50, "fsdp"), (98, "fsdp-tp2")])
    assert edge[0].index("fsdp-tp2┊") == 7 + 98 - len("fsdp-tp2"), "its name is on its left"
    assert "┊fsdp" in edge[0]


@pytest.mark.parametrize("is_log", [False, True])
@example(own=[math.nan], others=[], width=11, height=3)
@given(own=LOSSES, others=st.lists(LOSSES, max_size=3), width=st.integers(0, 200), height=st.integers(0, 60))
def test_any_curves_are_drawn_within_any_size(
    own: list[float], others: list[list[float]], width: int, height: int, is_log: bool
) -> None:
    curves = [curve(values, letter, "x") for values, letter in zip(others, "ABC", strict=False)]
    lines = drawn(own, *curves, width=width, height=height, is_log=is_log)
    assert len(lines) <= max(height, bool(others))
    assert all(len(line) <= width for line in lines if not line.startswith(("no ", "A", "B", "C")))
    if any(map(math.isfinite, own)) and not others and width >= 20 and height >= 5:
        assert braille(lines)


def test_each_curve_ends_in_its_letter_which_a_legend_names_with_its_last_loss() -> None:
    lines = drawn([2.0] * 20, curve([3.0] * 20), curve([math.nan], "B", "lost-1"), curve([], "C", "new-1"))
    assert lines[0] == "A other-1 3   B lost-1 –   C new-1 –"
    assert drawn([2.0] * 20)[0] != "", "no line of the chart is lost without other runs"
    narrow = drawn([2.0] * 20, curve([3.0] * 20), curve([4.0] * 20, "B", "another-2"), width=24)
    assert narrow[:2] == ["A other-1 3", "B another-2 4"]
    lines = drawn([2.0] * 20, curve([3.0] * 20), curve([4.0] * 10, "B"), width=27)[1:]
    ends = {letter: (line.index(letter), row) for row, line in enumerate(lines) for letter in "AB" if letter in line}
    assert (ends["A"][0], ends["B"][0]) == (7 + 19, 7 + 9)
    assert ends["B"][1] < ends["A"][1], "a higher loss is drawn higher"
    equal = drawn([2.0] * 20, curve([3.0] * 20), curve([3.0] * 20, "B"), width=27)
    assert any("BA" in line for line in equal[1:]), "side by side"


def test_the_own_curve_is_drawn_over_the_others() -> None:
    lines = draw_plot(Plot(losses_of([2.0] * 20), [curve([2.0] * 15)]), 67, 14)
    row = next(line for line in lines[1:] if "A" in line.plain)
    styles = {span.style for span in row.spans}
    assert CURVE_STYLE in styles
    assert styles <= {CURVE_STYLE, "bold $warning", "$text-muted", "$accent"}, "the other one is below it"


def test_the_axes_fit_the_longest_and_highest_curve() -> None:
    lines = drawn([2.0] * 10, curve([9.0] * 80))
    assert lines[-1].split()[-1] == "80"
    assert float(next(line for line in lines if "┤" in line).split()[0]) >= 9
    assert "A other-1 9" in drawn([], curve([9.0] * 80))[0], "also before the first step of this run"


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("size", [-2.5e5, 2e-7, 1e-4, 0.003, 12_345.0, 2.5e5, 1e20])
def test_the_vertical_axis_has_whole_numbers_of_any_size(size: float, is_log: bool) -> None:
    if is_log and size < 0:
        return
    lines = drawn([size * (1 + at / 20) for at in range(40)], height=30, is_log=is_log)
    labels = {at: float(line[: line.index("┤")]) for at, line in enumerate(lines) if "┤" in line}
    places = {at: math.log10(label) if is_log else label for at, label in labels.items()}
    (top, high), *_, (bottom, low) = places.items()
    assert low <= (math.log10(size) if is_log else min(size, 2.95 * size)) < high
    for at, place in places.items():
        assert place == pytest.approx(high + (low - high) * (at - top) / (bottom - top), abs=(high - low) / 10)


def test_the_steps_below_have_spaces_between_them() -> None:
    losses = losses_of([math.nan] * 1_200_000 + [1.0])
    for width in range(31, 80):
        axis = draw_plot(Plot(losses, window=(1_200_000, 1_999_000)), width, 14)[-1].plain
        assert {len(step) for step in axis.split()} == {len("1,200,000")}


def test_bytes_seconds_and_counts_have_three_digits_and_a_unit() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 999_999: "1 MB", 9_873_408: "9.87 MB", 15 * 10**14: "1.5 PB"}
    seconds = {4e-5: "40 µs", 0.0031: "3.1 ms", 0.031: "31 ms", 0.9999: "1.0 s", 4.24: "4.2 s", 200: "3 min 20 s"}
    counts = {842_496: "842 k", 124_439_808: "124 M", 1_557_611_200: "1.56 B"}
    assert {each: formatting.size(each) for each in sizes} == sizes
    assert {each: formatting.seconds(each) for each in seconds} == seconds
    assert formatting.seconds(7300) == "2 h 1 min"
    assert {each: formatting.count(each) for each in counts} == counts
    assert formatting.rate(1.68e18) == "1.68 E", "the FLOPs of a step of 4 M tokens of a model of 70 B"


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.5, 9) | st.none())), st.integers(0, 60), st.integers(0, 60))
def test_evaluations_are_found_by_their_steps(added: list[tuple[int, float | None]], begin: int, end: int) -> None:
    evaluations, kept = Evaluations(), dict[int, float | None]()
    for step, loss in added:
        evaluations.add(step, loss)
        kept = {before: value for before, value in kept.items() if before < step} | {step: loss}
    finite = [loss for step, loss in kept.items() if begin < step <= end and loss is not None]
    assert evaluations.mean(begin, end) == (pytest.approx(sum(finite) / len(finite)) if finite else None)
    assert len(evaluations) == max(kept, default=0)
    before = max((step for step in kept if step <= end), default=None)
    assert (evaluations.latest(end) or [None])[0] == before


def test_held_out_losses_are_a_second_curve_with_a_letter_and_a_legend() -> None:
    evaluations = Evaluations()
    for step in (20, 40, 60, 80):
        evaluations.add(step, 6 - step / 80)
    lines = drawn([5 - n / 20 for n in range(80)], Curve("eval", evaluations, "e", "$accent"))
    assert lines[0] == "e eval 5"
    ends = [(x, y) for y, line in enumerate(lines[1:]) for x, cell in enumerate(line) if cell == "e"]
    assert [x for x, _ in ends] == [max(x for x, _ in braille(lines))]
    own = [y for x, y in braille(lines) if x == ends[0][0]]
    assert all(ends[0][1] + 1 < y for y in own), "the held-out loss is above that of the steps"


async def opened(app: ShardtuiApp, pilot: Pilot[None]) -> OverlayScreen:
    """Presses `i` and waits for the dialog and its figures."""
    await pilot.press("i")
    await until(lambda: isinstance(app.screen, OverlayScreen), "the dialog")
    screen = app.screen
    await until(lambda: len(screen.table.summaries) == len(screen.table.runs), "the figures")
    await pilot.pause()
    return screen


async def test_i_draws_the_marked_runs_until_they_are_unmarked(home: Path) -> None:
    stopped = EngineStopped(step=6, reason="stopped")
    recorded_run("again-1", TrainingStarted(preset="tp", step=2), steps(6, 1.9, 1.8, 1.7, 1.6), stopped)
    recorded_run("other-1")
    async with finished(recorded_run("own-1")) as (app, pilot):
        chart = app.screen.query_one(LossChart)
        screen = await opened(app, pilot)
        assert set(screen.table.runs) == {"again-1", "other-1"}, "not the run itself"
        screen.table.select("again-1")
        await pilot.press("space")
        assert "[x] again-1" in screen_text(app)
        await pilot.press("escape")
        await until(lambda: chart.others, "the curve")
        assert list(chart.others[0].losses) == pytest.approx([4.0, 3.0, 1.9, 1.8, 1.7, 1.6])
        assert chart.lines[0].plain == "A again-1 1.6"
        screen = await opened(app, pilot)
        assert screen.table.chosen == {"again-1"}
        screen.table.select("other-1")
        await pilot.press("enter", "i")
        await until(lambda: len(chart.others) == 2, "the other curve")
        assert chart.lines[0].plain == "A again-1 1.6   B other-1 1"
        chart.put_cursor(2)
        assert chart.cursor_text() == "step 3: 2.0000 · A 1.9000 · B 2.0000"
        screen = await opened(app, pilot)
        screen.table.select("again-1")
        await pilot.press("space", "escape")
        await until(lambda: [curve.letter for curve in chart.others] == ["B"], "its end")
        assert chart.lines[0].plain == "B other-1 1", "a letter stays with its run"
        run_directory.find("other-1").discard()
        assert not (await opened(app, pilot)).table.chosen, "a deleted run counts no more"


async def test_keys_in_a_burst_mark_as_many_runs_as_there_are_letters_one_of_them_without_losses(home: Path) -> None:
    for number in range(MAX_CURVES + 1):
        recorded_run(f"other-{number}")
    async with finished(recorded_run("own-1")) as (app, pilot):
        chart = app.screen.query_one(LossChart)
        screen = await opened(app, pilot)
        for key in ("enter", *["down", "space"] * (MAX_CURVES - 1)):
            app.simulate_key(key)
        await until(lambda: len(screen.table.chosen or ()) == MAX_CURVES, "all marks")
        assert not app._notifications
        await pilot.press("down", "space")
        await until(lambda: app._notifications, "the warning")
        assert screen.table.chosen and len(screen.table.chosen) == MAX_CURVES
        unreadable = min(screen.table.chosen)
        run_directory.find(unreadable).events.unlink()
        await pilot.press("escape")
        await until(lambda: len(chart.others) == MAX_CURVES, "the curves, and an entry for what cannot be read")
        assert len({curve.letter for curve in chart.others}) == MAX_CURVES
        assert {curve.name: len(curve.losses) for curve in chart.others if len(curve.losses) != 4} == {unreadable: 0}


async def test_another_scalar_is_drawn_or_laid_under_the_loss_and_without_other_runs_the_dialog_is_empty(
    home: Path,
) -> None:
    metrics = {"grad_norm": [0.5, 0.25], "learning_rate": [1e-4, 2e-4]}
    async with finished(recorded_run("own-1", steps(6, 0.9, 0.8, metrics=metrics))) as (app, pilot):
        chart = app.screen.query_one(LossChart)
        await until(lambda: app.state.step == 6, "all steps")
        await pilot.press("g")
        await until(lambda: "grad_norm" in str(chart.border_title), "the norm")
        assert not chart.curves and len(chart.losses) == 6
        await pilot.press("u")
        await until(lambda: "u grad_norm 0.25 (own scale)" in chart.lines[0].plain, "the norm under the loss")
        assert "loss" in str(chart.border_title)
        await pilot.press("g")
        await until(lambda: "u learning_rate 0.0002" in chart.lines[0].plain, "the next scalar")
        await pilot.press("g")
        await until(lambda: not chart.curves, "the loss alone")
        screen = await opened(app, pilot)
        assert not screen.table.runs
        await pilot.press("space", "enter", "escape")
        await until(lambda: isinstance(app.screen, RunScreen), "the view")
        assert not chart.others
