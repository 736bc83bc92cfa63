"""The numbers inside arrays in the views: columns and pane of Arrays, and Experts, over runs that have ended."""

import math
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.base import formatting
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.number_events import ArrayNumbers, NumbersMeasured
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.messages import EventsArrived
from shardtui.tui.state.number_tables import course_bars
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.heat_map import HeatRow, draw_heat_map, folded
from shardtui.tui.widgets.numbers_pane import family

from ..conftest import READY, tiny_config
from ..recorded import EXPERTS, SHARD, array_numbers, numbers_measured, record, recorded_run, started, steps
from .recordings import described
from .test_app import finished, until
from .test_views import names, press, table

UP = "blocks.mlp.up.kernel"
(INSPECTION,) = described("fsdp-tp2")


def measured(step: int, size: float = 1.0, **fields: object) -> NumbersMeasured:
    """Numbers of some arrays of `INSPECTION`: layer 1 of `UP` stands out."""
    arrays = [
        array_numbers(UP, 0.02 * size, 0.8 * size, shards=[SHARD], nonfinite=[0, 12]),
        array_numbers(f"grad.{UP}", 0.003, 0.004, kind="gradient"),
        array_numbers(f"update.{UP}", 2e-5, 8e-4, kind="update"),
        array_numbers(f"mu.{UP}", 1e-4, 1e-4, kind="moment"),
        array_numbers("norm.scale", 1.0),
        array_numbers("a.value.that.no.layout.has", 5.0, kind="activation"),
    ]
    return numbers_measured(step, *arrays, preset="fsdp-tp2", **fields)


def run_with(*events: wire.Event) -> RunDirectory:
    directory = run_directory.create(tiny_config(run="numbers", preset="fsdp-tp2"))
    record(
        directory,
        started(config=directory.config),
        msgspec.structs.replace(READY, devices=INSPECTION.devices),
        wire.TrainingStarted(preset="fsdp-tp2"),
        INSPECTION.compiled,
        INSPECTION.inspected,
        steps(8, *[1.0] * 8),
        *events,
        wire.EngineStopped(step=8, reason="stopped"),
    )
    return directory


def cells(app: ShardtuiApp, name: str) -> list[str]:
    return [str(cell) for cell in table(app).get_row_at(names(app).index(name))]


def shown_words(app: ShardtuiApp) -> str:
    """Returns the text on the screen with one space between words."""
    return " ".join(screen_text(app).split())


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=("80 × 24", "140 × 40"))
async def test_n_shows_the_numbers_in_the_arrays(home: Path, size: tuple[int, int]) -> None:
    async with finished(run_with(measured(4), measured(8, 2.0)), size) as (app, pilot):
        await press(pilot, "2")
        layout, before = names(app), app.screen.query_one("ArrayTable").sorted_by
        app.screen.select(UP)
        await press(pilot, "n")
        assert names(app) == [UP, f"grad.{UP}", f"mu.{UP}", "norm.scale", "a.value.that.no.layout.has"]
        course = ["▁█"] if size[0] > 80 else []
        assert cells(app, UP)[1 : 4 + len(course)] == ["1.13", "12", *course, "5e-4"]
        text = shown_words(app)
        assert "step 8, measured in 250 ms" in text and f"─ {UP} ─" in text, "the same array is selected"
        assert "parameter 0.04 1.6!" in text and "update ratio 5e-4 5e-4" in text
        assert "device 3 [1:2, 0:64, 128:256]: 12 NaN or inf, rms 3.2e4, 40 × the others" in text
        await press(pilot, "o", "o")
        assert app.screen.query_one("ArrayTable").sorted_by == "rms" and names(app)[0] == "a.value.that.no.layout.has"
        assert "Group" not in screen_text(app).splitlines()[-1]
        await press(pilot, "enter", "n")
        assert (names(app), app.screen.query_one("ArrayTable").sorted_by) == (layout, before)


async def test_arrays_without_layers_and_before_a_measurement(home: Path) -> None:
    async with finished(run_with()) as (app, pilot):
        await press(pilot, "2", "n")
        assert names(app) == [] and "none measured yet" in screen_text(app)
        assert "No numbers were measured: M measures now" in screen_text(app)
        app.post_message(EventsArrived([measured(8)]))
        await until(lambda: len(names(app)) == 5, "the numbers")
        app.screen.select("norm.scale")
        await pilot.pause()
        assert "parameter 1 4 0 0 % 0" in shown_words(app)


async def test_m_measures_and_shows_so_at_once(home: Path) -> None:
    async with finished(run_with()) as (app, pilot):
        await press(pilot, "2", "M")
        assert [notice.message for notice in app._notifications] == ["the run has ended: r resumes it"]
        assert not app.screen.has_class("-numbers")
        app.post_message(EventsArrived([wire.TrainingStarted(preset="fsdp-tp2", step=8)]))
        await until(lambda: app.state.phase is Phase.TRAINING, "a run that trains")
        await press(pilot, "M")
        assert app.screen.has_class("-numbers") and "measuring …" in screen_text(app)
        app.post_message(EventsArrived([measured(9)]))
        await until(lambda: "step 9, measured in" in screen_text(app), "the answer")
        await press(pilot, "M")
        app.post_message(EventsArrived([wire.CommandRefused(problem="no")]))
        await until(lambda: "measuring" not in screen_text(app), "the refusal")
        app.post_message(EventsArrived([numbers_measured(11, problem="no memory")]))
        await until(lambda: "not measured: no memory" in screen_text(app), "the problem")
        assert len(names(app)) == 5, "those of step 9"


async def see(app: ShardtuiApp, text: str) -> None:
    await until(lambda: text in shown_words(app), text)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=("80 × 24", "140 × 40"))
async def test_experts_is_there_for_models_with_experts_and_follows_events(home: Path, size: tuple[int, int]) -> None:
    async with finished(run_with(measured(4)), size) as (app, pilot):
        await press(pilot, "E")
        assert [notice.message for notice in app._notifications] == ["this model has no experts"]
        app.post_message(EventsArrived([measured(8, experts=EXPERTS)]))
        await until(lambda: app.state.has_experts, "the experts")
        await press(pilot, "E")
        await see(app, "tokens ÷ fair share, step 8")
        await see(app, "layer 1 0 2.5 1 0.5")
        assert "device part 1 of 2 does 1.12 × the mean" in screen_text(app)
        assert cells(app, "1") == ["1", "0.935", "62 %", "1", "2.5 (expert 1)", "12 %", "40"]
        even = msgspec.structs.replace(EXPERTS, load=[[1.0] * 4, [1.0] * 4])
        app.post_message(EventsArrived([measured(9, experts=even)]))
        await see(app, "layer 1 1 1 1 1")
        await press(pilot, "escape")
        assert app.current_mode == "watch"


async def test_experts_before_a_measurement(home: Path) -> None:
    async with finished(recorded_run()) as (app, _):
        await app.switch_mode("experts")
        await see(app, "The load of the experts was not measured: M measures now")


def plain(*rows: HeatRow, width: int, height: int = 0) -> list[str]:
    return [line.plain for line in draw_heat_map("layer", rows, width, height)]


def test_a_heat_map_has_figures_where_they_fit_else_bars() -> None:
    row = HeatRow("rms", [1.0, 10.0, 0.1, 0.0, 1.0], 1.0, frozenset([4]))
    assert plain(row, width=40) == ["layer     0     1     2     3     4 ", "rms       1    10   0.1     0     1!"]
    assert [len(line) for line in plain(row, width=40, height=3)] == [36] * 3
    assert plain(row, width=20)[1] == "rms   ▄▄██▁▁00!!"
    assert plain(row, width=9)[1] == "rms   █0!", "the strangest of two"
    (line,) = draw_heat_map("layer", [row], 30, reference="median")[1:]
    assert line.plain == "rms   ▄▄▄███▁▁▁000!!!        1", "what bars are compared with"
    many = HeatRow("rms", [1.0] * 63 + [9.0] + [1.0] * 32, 1.0)
    line = plain(many, width=54)[1]
    assert len(line) == 54 and line.count("▇") == 1
    assert draw_heat_map("layer", [], 40) == []


def test_a_value_that_overflowed_is_drawn() -> None:
    row = HeatRow("rms", [1.0, math.inf, math.nan], 1.0)
    assert plain(row, width=40)[1].split() == ["rms", "1", "inf", "nan"]
    assert len(plain(row, width=8)[1]) <= 8
    assert course_bars([1.0, math.inf, 2.0, math.nan]) == "▁█"


def test_a_heat_map_is_folded_to_the_strangest_rows() -> None:
    rows = [HeatRow(f"layer {at}", [1.0, 5.0 if at == 3 else 1.0], 1.0) for at in range(5)]
    found = folded(rows, 3)
    assert [(row.name, row.values) for row in found] == [
        ("layer 0…1", [1.0, 1.0]),
        ("layer 2…3", [1.0, 5.0]),
        ("layer 4", [1.0, 1.0]),
    ]
    assert folded(rows, 9) == rows


def test_a_family_is_that_of_the_parameter() -> None:
    arrays: dict[str, ArrayNumbers] = {array.name: array for array in measured(1).arrays}
    arrays["other.norm.scale"] = array_numbers("other.norm.scale", 1.0)
    assert list(family(arrays[UP], arrays)) == ["parameter", "gradient", "update", "mu"]
    assert list(family(arrays[f"mu.{UP}"], arrays)) == ["parameter", "gradient", "update", "mu"]
    assert list(family(arrays["norm.scale"], arrays)) == ["parameter"]
    assert list(family(arrays["a.value.that.no.layout.has"], arrays)) == ["activation"]


def test_numbers_of_any_magnitude_are_short() -> None:
    assert [formatting.number(value, 2) for value in (0.0213, 3.14e-4, 32_000.0, 0.0)] == [
        "0.021",
        "3.1e-4",
        "3.2e4",
        "0",
    ]
