"""The timeline of a step, its cursor, and the parts of the step over the course of a run."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.profiling.timeline import MAX_SPANS, Activity, Rank, device_spans, encoded
from shardtui.engine.wire.events import PartsMeasured
from shardtui.engine.wire.step_breakdown import TICKS, OperationTime, PartTime, StepBreakdown, Timeline
from shardtui.tui.screens.time import folded, history_lines
from shardtui.tui.screens.traffic import TrafficScreen
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.timeline import LABEL_WIDTH, device_lanes, in_words, lane_line, widest
from textual.pilot import Pilot

from ..recorded import recorded_run
from .recordings import recorded
from .test_app import until
from .test_time import breakdown, profiled, time_view
from .test_views import press

NAMES = ["dot.1", "add.2", "all-reduce.3"]
PARTS = ["matrix products", "other fusions", "all-reduce over model"]
WINDOW = (500, 500 + 50_000)
"""Five picoseconds a tick."""
TIMES = st.tuples(st.integers(0, 51_000), st.integers(0, 3_000))
ACTIVITIES = st.lists(
    st.builds(
        lambda time, rank, name: Activity(time[0], time[0] + time[1], rank, name),
        TIMES,
        st.sampled_from([Rank.WORK, Rank.WAITING, Rank.EXPOSED]),
        st.sampled_from([*NAMES, "unlisted"]),
    ),
    max_size=2_000,
)


def shown(activities: list[Activity]) -> StepBreakdown:
    listed = [
        OperationTime(name=name, part=part, count=1, seconds=0.1, module="", source="/home/me/model.py:7")
        for name, part in zip(NAMES, PARTS, strict=True)
    ]
    timeline = Timeline(step=7, seconds=0.5, devices=[encoded(device_spans(0, 42, activities, WINDOW), NAMES)])
    values = {name: getattr(breakdown(), name) for name in StepBreakdown.__struct_fields__}
    return StepBreakdown(**values | {"operations": listed, "timeline": timeline})


@given(ACTIVITIES)
def test_spans_are_in_order_within_the_step_and_bounded(activities: list[Activity]) -> None:
    timeline = shown(activities).timeline
    (device,) = timeline.devices
    for lane, limit in ((device.work, 2), (device.waiting, 4), (device.collectives, 4)):
        assert len(lane) <= 3 * MAX_SPANS // limit
        assert sum(lane[::3]) + sum(lane[1::3]) <= TICKS
        assert all(gap >= 0 and length > 0 for gap, length in zip(lane[::3], lane[1::3], strict=True))


@given(ACTIVITIES)
def test_few_spans_are_read_as_they_were_written(activities: list[Activity]) -> None:
    """Of work alone, with gaps of 100 ticks: nothing is merged."""
    kept = [Activity(each.begin // 2_500 * 2_500, 0, Rank.WORK, each.key) for each in activities]
    found = {each.begin: each._replace(end=each.begin + 2_000) for each in kept if each.begin <= 47_500}
    lanes = device_lanes(read := shown(list(found.values())), read.timeline.devices[0])
    inside = [each for begin, each in sorted(found.items()) if begin >= 2_500]
    spans = [span for span in lanes.work if span.begin >= 400]
    assert [(span.begin, span.end) for span in spans] == [((at.begin - 500) // 5, (at.end - 500) // 5) for at in inside]
    named = [span.operation.name if span.operation else "unlisted" for span in spans]
    assert named == [each.key for each in inside]
    assert not any(span.is_merged for span in spans)
    for one, other in pairwise(spans):
        gap = (one.end, other.begin)
        assert widest(spans, *gap) == (None, 0.0) or gap[0] == gap[1]


def test_a_lane_shows_gaps_parts_and_the_cursor() -> None:
    activities = [
        Activity(500, 10_500, Rank.WORK, "dot.1"),
        Activity(20_500, 30_500, Rank.WORK, "add.2"),
        Activity(10_500, 15_500, Rank.WAITING, "all-reduce.3"),
        Activity(15_500, 20_500, Rank.EXPOSED, "all-reduce.3"),
    ]
    lanes = device_lanes(read := shown(activities), read.timeline.devices[0])
    work = lane_line("42", lanes.work, (0, TICKS), 50, 3).plain
    assert work == f"{'42':<{LABEL_WIDTH}}" + "█" * 10 + " " * 10 + "▓" * 10 + " " * 20
    collectives = lane_line("", lanes.collectives, (2_000, 4_000), 20, None).plain
    assert collectives == " " * LABEL_WIDTH + ":" * 10 + "=" * 10
    text = in_words(widest(lanes.collectives, 2_500, 2_600)[0], read.timeline)
    assert text == "waiting for all-reduce.3 over model, 50 ms, at 100 ms, model.py:7"
    assert in_words(None, read.timeline) == "nothing"


def test_merged_spans_are_named_for_the_longest() -> None:
    many = [Activity(500 + at * 10, 503 + at * 10, Rank.WORK, "add.2") for at in range(5_000)]
    many[1234:1235] = [Activity(500 + 12_340, 500 + 12_349, Rank.WORK, "dot.1")]
    lanes = device_lanes(read := shown(many), read.timeline.devices[0])
    assert 100 < len(lanes.work) <= MAX_SPANS // 2
    assert all(span.is_merged for span in lanes.work)
    (found,) = [span for span in lanes.work if span.operation and span.operation.name == "dot.1"]
    assert found.begin <= 2_468 <= found.end
    assert read.timeline and in_words(found, read.timeline).startswith("mostly dot.1")


async def pressed(pilot: Pilot[None], *keys: str) -> str:
    await press(pilot, *keys)
    return screen_text(pilot.app)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_a_key_shows_the_timeline_whose_cursor_names_operations(home: Path, size: tuple[int, int]) -> None:
    async with time_view(recorded(), size) as (_, pilot):
        text = await pressed(pilot, "t")
        assert "▸0" in text and "compute " in text and "operations" not in text
        moved = await pressed(pilot, "down", *["right"] * 9)
        assert "▸1" in moved and "▲" in moved
        table = await pressed(pilot, "t")
        assert "operations" in table and "▸1" not in table


async def test_zoom_keeps_the_cursor_and_escape_shows_all(home: Path) -> None:
    async with time_view(recorded(), (100, 30)) as (app, pilot):
        await press(pilot, "t", *["right"] * 20, "plus", "plus", "plus")
        view = app.screen.query_one("TimelineView")
        first, last = view.window
        assert last - first == TICKS // 8
        assert first <= view.cursor < last
        await press(pilot, "full_stop")
        assert view.window == pytest.approx((first + TICKS / 32, last + TICKS / 32), abs=1)
        await press(pilot, "escape")
        assert view.window == (0, TICKS)


async def test_a_collective_leads_from_time_to_traffic_and_back_and_work_does_not(home: Path) -> None:
    async with time_view(recorded(), (140, 40)) as (app, pilot):
        time = app.screen
        await press(pilot, "slash", *"all-reduce.83", "enter", "enter")
        traffic = app.screen
        assert isinstance(traffic, TrafficScreen) and traffic.table.selected
        assert traffic.infos[traffic.table.selected].name == "all-reduce.83" and "measured" in screen_text(app)
        await press(pilot, "down", "m")
        assert app.screen is time and time.table.selected
        assert time.table.selected.startswith("all-reduce") and time.table.selected != "all-reduce.83"
        await press(pilot, "escape", "slash", *"ynn_fusion", "enter", "enter")
        assert app.screen is time and time.table.selected.startswith("ynn_fusion")


async def test_a_breakdown_without_a_timeline_says_so(home: Path) -> None:
    async with time_view(recorded_run("old-1", profiled(breakdown=breakdown(idle=0.2)))) as (app, pilot):
        await pilot.press("t")
        await until(lambda: "has no timeline" in screen_text(app), "the reason")


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


FAILED = PartsMeasured(step=3, preset="dp", step_seconds=None, parts=[], pause_seconds=1.0, problem="cut off")


def test_the_history_has_no_failures() -> None:
    state = RunState()
    for event in (measured(2), FAILED, measured(9)):
        apply(state, event)
    assert [each.step for each in state.measured] == [2, 9]


def test_the_log_has_a_line() -> None:
    words = "step 1,200 of 1.0 s: matrix products 75 %, all-reduce over data: waiting 25 %; paused 2.5 s"
    assert measured(1200, 0.25).line.startswith(words)
    assert FAILED.line.startswith("no parts of step 3: cut off")


async def test_a_key_shows_the_history(home: Path) -> None:
    async with time_view(recorded_run("tiny-1", measured(100), measured(200, 0.5))) as (app, pilot):
        await pilot.press("h")
        await until(lambda: "1.0 s │" in screen_text(app), "the history below the bar")
        rows = [line.strip("│ ") for line in screen_text(app).splitlines() if line.endswith("1.0 s │")]
        assert [row.split()[0] for row in rows] == ["100", "200"]
        assert ":" not in rows[0] and rows[1].count(":") > 20


async def test_without_breakdowns_the_history_says_how_to_get_them(home: Path) -> None:
    async with time_view(recorded_run()) as (app, pilot):
        await pilot.press("h")
        await until(lambda: "--profile-every" in screen_text(app), "how to get them")
