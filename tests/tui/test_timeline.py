"""The timeline of a step: its spans in the breakdown, how it is drawn, and its cursor."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.profiling.timeline import MAX_SPANS, Activity, Rank, device_spans, encoded
from shardtui.engine.wire.events import Profiled
from shardtui.engine.wire.step_breakdown import TICKS, OperationTime, StepBreakdown, Timeline
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.screens.time import TimeScreen
from shardtui.tui.screens.traffic import TrafficScreen
from shardtui.tui.state.timeline_spans import device_lanes, in_words, widest
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.timeline import LABEL_WIDTH, TimelineView, lane_line

from ..recorded import recorded_run
from .recordings import recorded
from .test_app import until
from .test_time import breakdown

T = TypeVar("T")
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
    """A breakdown with the timeline of one device."""
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
    assert timeline
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
    lanes = device_lanes(read := shown(list(found.values())), read.timeline.devices[0])  # type: ignore[union-attr]
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
    lanes = device_lanes(read := shown(activities), read.timeline.devices[0])  # type: ignore[union-attr]
    work = lane_line("42", lanes.work, (0, TICKS), 50, 3).plain
    assert work == f"{'42':<{LABEL_WIDTH}}" + "█" * 10 + " " * 10 + "▓" * 10 + " " * 20
    collectives = lane_line("", lanes.collectives, (2_000, 4_000), 20, None).plain
    assert collectives == " " * LABEL_WIDTH + ":" * 10 + "=" * 10
    assert read.timeline
    text = in_words(widest(lanes.collectives, 2_500, 2_600)[0], read.timeline)
    assert text == "waiting for all-reduce.3 over model, 50 ms, at 100 ms, model.py:7"
    assert in_words(None, read.timeline) == "nothing"


def test_merged_spans_are_named_for_the_longest() -> None:
    many = [Activity(500 + at * 10, 503 + at * 10, Rank.WORK, "add.2") for at in range(5_000)]
    many[1234:1235] = [Activity(500 + 12_340, 500 + 12_349, Rank.WORK, "dot.1")]
    lanes = device_lanes(read := shown(many), read.timeline.devices[0])  # type: ignore[union-attr]
    assert 100 < len(lanes.work) <= MAX_SPANS // 2
    assert all(span.is_merged for span in lanes.work)
    (found,) = [span for span in lanes.work if span.operation and span.operation.name == "dot.1"]
    assert found.begin <= 2_468 <= found.end
    assert read.timeline and in_words(found, read.timeline).startswith("mostly dot.1")


async def pressed(size: tuple[int, int], look: Callable[[ShardtuiApp], T], *groups: Sequence[str]) -> list[T]:
    """Opens Time on the recorded run and presses keys. Returns what `look` sees after each group of them."""
    app = ShardtuiApp(EngineClient(recorded()), starts=False)
    seen: list[T] = []
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("9")
        await until(lambda: app.current_mode == "time" and app.screen.query("DataTable"), "the view")
        await pilot.pause()
        for keys in groups:
            await pilot.press(*keys)
            await pilot.pause()
            seen.append(look(app))
    return seen


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_a_key_shows_the_timeline_whose_cursor_names_operations(home: Path, size: tuple[int, int]) -> None:
    text, moved, table = asyncio.run(pressed(size, screen_text, "t", ["down", *["right"] * 9], "t"))
    assert "▸0" in text and "compute " in text and "operations" not in text
    assert "▸1" in moved and "▲" in moved
    assert "operations" in table and "▸1" not in table


def test_zoom_keeps_the_cursor_and_escape_shows_all(home: Path) -> None:
    def view(app: ShardtuiApp) -> tuple[int, int, float]:
        found = app.screen.query_one(TimelineView)
        return (*found.window, found.cursor)

    groups = ["t", *["right"] * 20, "plus", "plus", "plus"], ["full_stop"], ["escape"]
    (first, last, cursor), panned, whole = asyncio.run(pressed((100, 30), view, *groups))
    assert last - first == TICKS // 8
    assert first <= cursor < last
    assert panned[:2] == pytest.approx((first + TICKS / 32, last + TICKS / 32), abs=1)
    assert whole[:2] == (0, TICKS)


def chosen(app: ShardtuiApp) -> tuple[str, str, str]:
    """The view, the instruction under its cursor, and the text."""
    screen = app.screen
    assert isinstance(screen, TrafficScreen | TimeScreen)
    row = screen.table.selected or ""
    return app.current_mode, screen.infos[row].name if isinstance(screen, TrafficScreen) else row, screen_text(app)


def test_a_collective_leads_from_time_to_traffic_and_back(home: Path) -> None:
    groups = ["slash", *"all-reduce.83", "enter", "enter"], ["down", "m"]
    (mode, name, text), back = asyncio.run(pressed((140, 40), chosen, *groups))
    assert (mode, name) == ("traffic", "all-reduce.83") and "measured" in text
    assert back[0] == "time" and back[1].startswith("all-reduce") and back[1] != "all-reduce.83"


def test_work_does_not_lead_to_traffic(home: Path) -> None:
    ((mode, name, _),) = asyncio.run(pressed((140, 40), chosen, ["slash", *"ynn_fusion", "enter", "enter"]))
    assert mode == "time" and name.startswith("ynn_fusion")


def test_a_breakdown_without_a_timeline_says_so(home: Path) -> None:
    async def opened() -> None:
        found = recorded_run(
            "old-1", Profiled(step=4, steps=2, directory="/x", preset="dp", breakdown=breakdown(idle=0.2))
        )
        app = ShardtuiApp(EngineClient(found), starts=False)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: app.state.profiled, "the history")
            await pilot.press("9")
            await until(lambda: app.current_mode == "time" and app.screen.query("DataTable"), "the view")
            await pilot.press("t")
            await until(lambda: "has no timeline" in screen_text(app), "the reason")

    asyncio.run(opened())
