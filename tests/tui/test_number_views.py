"""The numbers inside arrays in the views: Arrays, Experts, and what N shows of the first non-finite value."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.base import formatting
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import MeshInfo
from shardtui.engine.wire.number_events import ArrayNumbers, NonfiniteExplained, NonfiniteOrigin, NumbersMeasured
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli.main import main
from shardtui.tui.messages import EventsArrived
from shardtui.tui.screens.nonfinite import NonfiniteScreen
from shardtui.tui.state.announcements import Announcement
from shardtui.tui.state.experts import layer_loads, part_loads, part_words
from shardtui.tui.state.number_tables import course_bars, layers_words, shard_words
from shardtui.tui.state.numbers import KEPT, Numbers, outlier, rows_of, whole
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.heat_map import HeatRow, draw_heat_map, folded
from shardtui.tui.widgets.numbers_pane import family

from ..conftest import READY, tiny_config
from ..recorded import EXPERTS, SHARD, array_numbers, numbers_measured, record, recorded_run, restored, started, steps
from ..schemas import checked
from .recordings import described
from .test_app import finished, until
from .test_run_state import after
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


async def test_m_measures_and_shows_so_at_once(home: Path) -> None:
    async with finished(run_with()) as (app, pilot):

        async def follows(event: wire.Event, text: str) -> None:
            app.post_message(EventsArrived([event]))
            await until(lambda: text in screen_text(app), text)

        await press(pilot, "2", "n")
        assert names(app) == [] and "none measured yet" in screen_text(app)
        assert "No numbers were measured: M measures now" in screen_text(app)
        await press(pilot, "n", "M")
        assert [notice.message for notice in app._notifications] == ["the run has ended: r resumes it"]
        assert not app.screen.has_class("-numbers")
        app.post_message(EventsArrived([wire.TrainingStarted(preset="fsdp-tp2", step=8)]))
        await until(lambda: app.state.phase is Phase.TRAINING, "a run that trains")
        await press(pilot, "M")
        assert app.screen.has_class("-numbers") and "measuring …" in screen_text(app)
        await follows(measured(9), "step 9, measured in")
        app.screen.select("norm.scale")
        await see(app, "parameter 1 4 0 0 % 0")
        await press(pilot, "M")
        app.post_message(EventsArrived([wire.CommandRefused(problem="no")]))
        await until(lambda: "measuring" not in screen_text(app), "the refusal")
        await follows(numbers_measured(11, problem="no memory"), "not measured: no memory")
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
    line = plain(HeatRow("rms", [1.0] * 63 + [9.0] + [1.0] * 32, 1.0), width=54)[1]
    assert len(line) == 54 and line.count("▇") == 1
    assert draw_heat_map("layer", [], 40) == []
    overflowed = HeatRow("rms", [1.0, math.inf, math.nan], 1.0)
    assert plain(overflowed, width=40)[1].split() == ["rms", "1", "inf", "nan"]
    assert len(plain(overflowed, width=8)[1]) <= 8
    rows = [HeatRow(f"layer {at}", [1.0, 5.0 if at == 3 else 1.0], 1.0) for at in range(5)]
    found = [("layer 0…1", [1.0, 1.0]), ("layer 2…3", [1.0, 5.0]), ("layer 4", [1.0, 1.0])]
    assert [(row.name, row.values) for row in folded(rows, 3)] == found, "to the strangest rows"
    assert folded(rows, 9) == rows


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        (UP, "parameter gradient update mu"),
        (f"mu.{UP}", "parameter gradient update mu"),
        ("norm.scale", "parameter"),
        ("a.value.that.no.layout.has", "activation"),
    ],
)
def test_a_family_is_that_of_the_parameter(name: str, kinds: str) -> None:
    arrays: dict[str, ArrayNumbers] = {array.name: array for array in measured(1).arrays}
    arrays["other.norm.scale"] = array_numbers("other.norm.scale", 1.0)
    assert list(family(arrays[name], arrays)) == kinds.split()


LOG: dict[str, Any] = {
    "what": "loss",
    "is_nan": False,
    "name": "blocks.mlp.up",
    "kind": "activation",
    "shape": [16, 8],
    "dims": ["batch", ""],
    "indices": [[5], [0, 1]],
    "elements": 2,
    "devices": [2],
    "operation": "log",
    "scope": "blocks/mlp",
    "layer": 3,
    "source": "/home/me/bad.py:31",
    "largest_input": 1.0,
}
PARAMETER = LOG | {"name": UP, "kind": "parameter", "operation": "", "is_nan": True, "devices": [*range(8)]}


def explained(origin: dict[str, Any] | None, problem: str | None = None) -> NonfiniteExplained:
    found = NonfiniteOrigin(**origin) if origin else None
    return NonfiniteExplained(step=9, origin=found, problem=problem, seconds=4.5)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=("80 × 24", "140 × 40"))
async def test_n_shows_the_operation_line_by_line(home: Path, size: tuple[int, int]) -> None:
    paused = wire.Paused(step=8, problem="the loss of step 9 is not finite")
    async with finished(run_with(explained(LOG), paused), size) as (app, pilot):
        app.notify("N: where it comes from", timeout=60)
        await press(pilot, "N")
        assert not app._notifications, "nothing covers the lines"
        await see(app, "step 9: the first non-finite value, found in 4.5 s")
        app.notices.show(Announcement("held until it is closed"))
        await pilot.pause()
        assert not app._notifications
        for text in (
            "operation log, forward pass",
            "source /home/me/bad.py:31",
            "layer 3",
            "inputs finite, largest magnitude 1",
            "elements 2 of 128 elements infinite (batch 5; 0, 1)",
            "devices 2 (fsdp 1, model 0)",
        ):
            await see(app, text)
        await press(pilot, "escape")
        assert app.current_mode == "watch" and not isinstance(app.screen, NonfiniteScreen)
        await until(lambda: [each.message for each in app._notifications] == ["held until it is closed"], "it")


async def test_its_lines_lead_to_the_array_and_the_origin_of_its_layout(home: Path) -> None:
    async with finished(run_with(explained(PARAMETER))) as (app, pilot):
        await press(pilot, "N")
        await see(app, f"parameter {UP}, before the step")
        await press(pilot, "enter")
        await until(lambda: app.current_mode == "arrays" and app.screen.query("ArrayTable"), "Arrays")
        assert app.screen.table.selected == UP and table(app).row_count
        await press(pilot, "N", "down", "enter")
        await until(lambda: "OriginScreen" in type(app.screen).__name__, "the origin of its layout")


async def test_its_devices_have_their_places_in_the_mesh_of_that_step(home: Path) -> None:
    fewer = MeshInfo({"data": 4}, list(range(4)))
    resumed = (
        started(),
        msgspec.structs.replace(READY, devices=INSPECTION.devices[:4]),
        wire.TrainingStarted(preset="dp", step=8),
        msgspec.structs.replace(INSPECTION.compiled, preset="dp", mesh=fewer),
    )
    async with finished(run_with(explained(LOG | {"devices": [6]}), *resumed)) as (app, pilot):
        await press(pilot, "N")
        await see(app, "devices 6 (fsdp 3, model 0)")


async def test_what_is_unknown_is_said_and_other_runs_have_no_such_key(home: Path) -> None:
    async with finished(run_with()) as (app, pilot):
        assert "First NaN" not in screen_text(app)
        await press(pilot, "N")
        assert [notice.message for notice in app._notifications] == ["no non-finite value was explained in this run"]
        app.post_message(EventsArrived([explained(None, "save more often")]))
        await until(lambda: app.state.nonfinite, "what was found")
        await press(pilot, "N")
        await see(app, "unknown save more often")


KERNEL = array_numbers("up", 0.03, 0.04, 3.0, shards=[SHARD], nonfinite=[0, 12, 0])
UPDATE = array_numbers("update.up", 0.003, 0.0, 0.03, kind="update")
BIAS = array_numbers("bias", 0.0)
STEP = numbers_measured(4, KERNEL, BIAS, UPDATE, array_numbers("update.bias", 0.1, kind="update"), experts=EXPERTS)


def kept(*events: wire.Event) -> Numbers:
    return after(*events).numbers


def test_courses_are_kept_and_a_restored_checkpoint_drops_later_measurements() -> None:
    each = [numbers_measured(step, array_numbers("up", float(step))) for step in range(1, 41)]
    numbers = kept(*each)
    assert numbers.newest is each[-1] and next(iter(numbers.courses["up"])) == (41 - KEPT, 41 - KEPT)
    numbers = kept(*each[:3], restored(2))
    assert numbers.newest is None and [*numbers.courses["up"]] == [(1, 1.0), (2, 2.0)]
    assert rows_of(numbers) == []
    numbers = kept(*each[:3], restored(2), again := numbers_measured(3, array_numbers("up", 7.0)))
    assert numbers.newest is again and [*numbers.courses["up"]][-1] == (3, 7.0)
    assert kept(*each[:3], wire.TrainingStarted(preset="dp", step=3)).newest is each[2]
    assert kept(each[0], numbers_measured(2, problem="no memory")).newest is each[0]
    assert [*kept(each[0], numbers_measured(1, array_numbers("up", 9.0))).courses["up"]] == [(1, 9.0)]
    numbers.rewind_to(2)
    numbers.rewind_to(1)
    assert [*numbers.courses["up"]] == [(1, 1.0)], "two rewinds without a measurement between them"


def test_updates_are_figures_of_their_parameter() -> None:
    up, bias = rows_of(kept(STEP))
    assert up.update_ratios == [pytest.approx(0.1), 0.0, pytest.approx(0.01)]
    assert up.update_ratio == pytest.approx(whole(UPDATE.rms) / whole(KERNEL.rms))
    assert (bias.update_ratios, bias.update_ratio) == ([None], None), "of a parameter that is 0"


def test_a_layer_that_stands_out_is_named() -> None:
    assert layers_words(KERNEL) == "0.03…3 (layer 1)", "with elements that are not finite"
    assert layers_words(array_numbers("up", 0.03, 0.04, 3.0)) == "0.03…3 (layer 2)"
    assert layers_words(array_numbers("up", 0.03, 0.04)) == "0.03…0.04"
    assert layers_words(BIAS) == ""
    assert outlier([1.0, 0.0, 1.0]) == 1 and outlier([0.0, 0.0, 1.0]) is None and outlier([]) is None
    assert shard_words(SHARD) == "device 3 [1:2, 0:64, 128:256]: 12 NaN or inf, rms 3.2e4, 40 × the others"


def test_small_changes_look_small_and_numbers_are_short() -> None:
    assert course_bars([1.0]) == "" and set(course_bars([1.0, 1.01, 1.0])) <= set("▄▅")
    assert course_bars([1e-3, 1.0]) == "▁█" and course_bars([0.0, 1.0, 2.0]) == "▁█"
    assert course_bars([1.0, math.inf, 2.0, math.nan]) == "▁█"
    short = ["0.0213", "1.23e-5", "-3.2e4", "0", "12"]
    assert [*map(formatting.number, (0.0213, 1.234e-5, -32_000.0, 0.0, 12.0))] == short
    assert [formatting.number(value, 2) for value in (0.0213, 3.14e-4)] == ["0.021", "3.1e-4"]


def test_the_load_of_experts() -> None:
    even, uneven = layer_loads(EXPERTS)
    assert (even.variation, even.dead, even.used) == (0.0, 0, pytest.approx(1.0))
    assert (uneven.dead, uneven.busiest, uneven.dropped) == (1, 1, 0.125)
    assert uneven.variation == pytest.approx(math.sqrt((1 + 2.25 + 0 + 0.25) / 4))
    shares = [2.5 / 4, 1 / 4, 0.5 / 4]
    assert uneven.used == pytest.approx(math.exp(-sum(share * math.log(share) for share in shares)) / 4)
    assert part_loads(EXPERTS) == [pytest.approx(4.5 / 4), pytest.approx(3.5 / 4)]
    assert part_words(EXPERTS, ["expert"]) == "`expert` part 1 of 2 does 1.12 × the mean"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["numbers", *arguments]) == code
    out, err = capsys.readouterr()
    return err if code else out


def words(out: str) -> list[str]:
    """Returns the lines with one space between words."""
    return [" ".join(line.split()) for line in out.splitlines()]


def test_numbers_of_a_run_as_tables_and_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = numbers_measured(2, array_numbers("up", 0.3, 0.4, 0.5), array_numbers("bias", 0.0))
    name = recorded_run("tiny-1", first, STEP, wire.EngineStopped(step=4, reason="stopped")).name
    out = printed(capsys, name)
    assert f"{name}, step 4, under dp: 2 arrays, measured in 250 ms" in out
    assert "up 1.73 12 ▁█ 0.01 12 0.03…3 (layer 1) 0 parameter" in words(out)
    assert "update.up" not in out
    assert "1 0.935 62 % 1 2.5 (expert 1) 12 % 40" in words(out)
    assert "device part 1 of 2 does 1.12 × the mean" in out
    out = printed(capsys, name, "--array", "up")
    assert "1 0.04 0.16 0 12 0" in words(out)
    assert "[1:2, 0:64, 128:256]" in out and "3.2e4" in out
    assert "step 2, under dp" in printed(capsys, name, "--step", "2")
    report = checked("numbers", printed(capsys, name, "--json"))
    assert [each["step"] for each in report["measurements"]] == [2, 4]
    report = json.loads(printed(capsys, name, "--json", "--step", "4", "--array", "up"))
    assert [[array["name"] for array in each["arrays"]] for each in report["measurements"]] == [["up", "update.up"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("tiny-1 --array upp", "--array upp: no such array among the 4 of step 4: did you mean up?"),
        ("tiny-1 --array zz", "--array zz: no such array among the 4 of step 4: see `shardtui numbers tiny-1`"),
        ("tiny-1 --step 3", "--step 3: run tiny-1 has numbers of steps 4: choose one of them"),
        ("none", "`shardtui train --resume none --numbers-every 100` trains on"),
        ("failed", "run failed has no numbers: no memory"),
        ("tiny-7", "run tiny-7: no such run"),
    ],
)
def test_mistakes_get_a_message(home: Path, capsys: pytest.CaptureFixture[str], arguments: str, says: str) -> None:
    recorded_run("tiny-1", STEP)
    recorded_run("none")
    recorded_run("failed", numbers_measured(5, problem="no memory"))
    assert says in printed(capsys, *arguments.split(), code=2)
