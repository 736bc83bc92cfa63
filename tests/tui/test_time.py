"""The Time view with its timeline and course, the tables of `shardtui profile`, and what it says to try."""

import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base import formatting
from shardtui.engine.hlo.step_cost import StepCost
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.planning.ranking import Row
from shardtui.engine.profiling.timeline import MAX_SPANS, Activity, Rank, device_spans, encoded
from shardtui.engine.wire.events import Event, PartsMeasured, Profiled, ProfileFailed
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.engine.wire.step_breakdown import (
    TICKS,
    CollectiveTime,
    DeviceTime,
    OperationTime,
    PartTime,
    StepBreakdown,
    Timeline,
    WaitTime,
)
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.messages import EventsArrived
from shardtui.tui.screens.time import folded, history_lines
from shardtui.tui.screens.traffic import TrafficScreen
from shardtui.tui.state.alternative import alternative
from shardtui.tui.state.bottleneck import suggestion
from shardtui.tui.state.experts import wait_words
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.step_bar import bar_lines, device_rows
from shardtui.tui.widgets.timeline import LABEL_WIDTH, device_lanes, in_words, lane_line, widest
from textual.pilot import Pilot

from ..command import answered
from ..conftest import SETTINGS, killed_after
from ..profiling.xspaces import Space
from ..recorded import EXPERTS, events_in, numbers_measured, recorded_run
from ..schemas import checked
from .recordings import EVENTS, described, recorded
from .test_app import finished, until
from .test_cli import run, started
from .test_views import press


def breakdown(devices: int = 8, **seconds: float) -> StepBreakdown:
    """A breakdown of these parts, in seconds, with one all-reduce over `model`; the rest of a second is products."""
    name = "all-reduce over model"
    found = {part.replace("_", " "): time for part, time in seconds.items()}
    waiting, exposed = found.pop("waiting", 0.0), found.pop("exposed", 0.0)
    times = {**found, f"{name}: waiting": waiting, f"{name}: exposed": exposed}
    times = {"matrix products": 1 - sum(times.values()), **times}
    about: dict[str, Any] = {"name": "all-reduce.1", "kind": "all-reduce", "axes": ["model"], "count": 4, "bytes": 1000}
    about |= {"seconds": waiting + exposed, "waiting_seconds": waiting, "exposed_seconds": exposed}
    about |= {"hidden_seconds": 0.0, "predicted_seconds": None, "source": "/home/me/model.py:3"}
    values: dict[str, Any] = {"program": "jit_step", "steps": 5, "step_seconds": 1.0, "clock_seconds": 1.01}
    return StepBreakdown(
        **values,
        collectives=[CollectiveTime(**about)],
        operations=[],
        operations_left_out=0,
        skipped=[],
        mesh={"data": devices // 2, "model": 2},
        parts=[PartTime(name=part, seconds=time, share=time) for part, time in times.items()],
        devices=[DeviceTime(device=device, seconds=list(times.values())) for device in range(devices)],
        waits=[WaitTime(device=device, count=4, seconds=waiting / devices) for device in range(devices)],
    )


def profiled(**found: Any) -> Profiled:
    return Profiled(step=9, steps=5, directory="/x", preset="dp-tp2", **found)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"waiting": 0.3, "exposed": 0.1}, "40 % of the step goes to all-reduce over model, mostly waiting for others"),
        ({"waiting": 0.1, "exposed": 0.3}, "not hidden behind work: a smaller model axis"),
        ({"input": 0.4, "exposed": 0.3}, "40 % of the step waits for batches"),
        ({"host": 0.4}, "40 % of the step passes between steps"),
        ({"idle": 0.4}, "a device has nothing to run"),
        ({"copies": 0.4}, "40 % of the step copies"),
        ({"exposed": 0.04}, "96 % of the step is work"),
    ],
)
def test_the_sentence_is_about_what_costs_most(seconds: dict[str, float], words: str) -> None:
    assert words in suggestion(breakdown(**seconds))


def test_the_sentence_names_a_device_that_others_wait_for() -> None:
    waits = [WaitTime(device=5, count=4, seconds=0.4), WaitTime(device=1, count=1, seconds=0.01)]
    found = msgspec.structs.replace(breakdown(waiting=0.4, exposed=0.1), waits=waits)
    assert "waiting for device 5" in suggestion(found)


def test_all_bars_are_equally_long_and_devices_fold() -> None:
    found = breakdown(devices=300, waiting=0.123, exposed=0.2, idle=0.017)
    rows = device_rows(found, 8)
    assert [name for name, _ in rows] == [f"{at}–{min(at + 37, 299)}" for at in range(0, 300, 38)]
    bars = bar_lines(found, 82, 8)[:9]
    assert {bar.cell_length for bar in bars} == {82}
    assert all(bar.plain.count(":") == 9 for bar in bars)  # 0.123 of 72
    assert bar_lines(breakdown(devices=2048, idle=0.1), 82, 128)[-2].plain.startswith("2032–2047 ")


@asynccontextmanager
async def time_view(
    directory: RunDirectory, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[ShardtuiApp, Pilot[None]]]:
    async with finished(directory, size) as (app, pilot):
        await pilot.press("9")
        await until(lambda: app.current_mode == "time" and app.screen.query("DataTable"), "the view")
        await pilot.pause()
        yield app, pilot


@pytest.mark.parametrize(
    ("event", "opens", "says"),
    [
        (profiled(breakdown=breakdown(exposed=0.4)), True, ["dp-tp2: a step of 1.0 s", "steps 5 to 9"]),
        (profiled(problem="too large"), False, ["too large"]),
        (ProfileFailed(step=9, problems=["no room"]), False, ["no room"]),
    ],
)
async def test_the_view_opens_when_the_requested_breakdown_is_there(
    home: Path, event: Profiled | ProfileFailed, opens: bool, says: list[str]
) -> None:
    async with finished(recorded_run()) as (app, pilot):
        await app.run_action("profile")
        app.lookups.awaits_profile = True  # a run that has ended takes no request
        app.post_message(EventsArrived([msgspec.structs.replace(event, time=time.time())]))
        await until(lambda: not app.lookups.awaits_profile, "what the run reports")
        await pilot.pause()
        assert (app.current_mode == "time") == opens
        text = screen_text(app)
        await press(pilot, "0")
        assert all(words in text + screen_text(app) for words in says)


def printed(*arguments: str) -> str:
    result = answered("profile", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_run_that_has_ended_shows_its_last_profile(home: Path) -> None:
    name = recorded().name
    text = printed(name)
    assert "all-reduce over model: waiting" in text and "devices that others wait for" in text
    report = checked("profile", printed(name, "--json"))
    assert sum(part["seconds"] for part in report["parts"]) == pytest.approx(report["step_seconds"], rel=1e-3)
    both = checked("profile-diff", printed(name, "--diff", name, "--json"))
    assert all(part["seconds"] == part["other_seconds"] for part in both["parts"])
    assert "+0 µs" in printed(name, "--diff", name)


def test_a_run_comes_before_a_file_of_its_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the directory that `metrics --tensorboard .` makes."""
    name = recorded().name
    (home / name).mkdir()
    monkeypatch.chdir(home)
    assert "all-reduce over model" in printed(name)
    refused = answered("profile", f"./{name}")
    assert (refused.returncode, "no .xplane.pb below it" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("content", "arguments", "problem"),
    [
        (b"", ["tiny-1"], "never profiled"),
        (b"\xff" * 50, ["{trace}"], "not a whole trace"),
        (b"", ["{trace}"], "no operation of a device"),
        (b"", ["{trace}", "--hlo", "/nowhere"], "--hlo /nowhere: cannot be read"),
        (None, ["{trace}"], "no .xplane.pb below it"),
    ],
)
def test_what_has_no_profile_is_refused(home: Path, content: bytes | None, arguments: list[str], problem: str) -> None:
    recorded_run()
    path = home / "trace"
    path.mkdir() if content is None else path.write_bytes(content)
    result = answered("profile", *(argument.format(trace=path) for argument in arguments))
    assert (result.returncode, result.stdout) == (2, "")
    assert problem in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_trace_of_another_program_is_read(home: Path) -> None:
    space = Space()
    for device in (0, 1):
        plane = space.plane(f"/device:GPU:{device}")
        plane.kernels("Stream #7(Compute)", [("gemm.1", at, at + 8) for at in (0, 10, 20)], "jit_mine")
    text = home / "mine.hlo"
    text.write_text("""HloModule jit_mine, num_partitions=2

ENTRY %main (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %gemm.1 = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""")
    report = json.loads(printed(str(space.write(home)), "--mesh=data=2", f"--hlo={text}", "--json"))
    assert report["parts"][0]["share"] > 0.5, "a matrix product"
    assert (report["program"], report["steps"], report["mesh"]) == ("jit_mine", 3, {"data": 2})


@pytest.mark.slow
def test_a_run_that_trains_is_profiled_on_request(home: Path) -> None:
    training = started("train", "--run=live", "--preset=dp-tp2", "--steps=1000000", *SETTINGS)
    with killed_after(300, training.pid):
        assert training.stderr and any(line.startswith("step ") for line in training.stderr)
    answer = run("profile", "live", "--steps=2", "--json")
    assert run("stop", "live").returncode == 0
    training.communicate()
    report = checked("profile", answer.stdout)
    assert (report["steps"], report["mesh"]) == (2, {"data": 4, "model": 2})
    assert "tracing 2 steps" in answer.stderr


@pytest.fixture
def state() -> RunState:
    """The state after the recorded run, in which `dp`, `fsdp` and `dp-tp2` trained, without what steps took."""
    state = RunState()
    apply_all(state, events_in(EVENTS))
    state.timed.clear()
    return state


def test_the_preset_to_try_was_faster_in_this_run(state: RunState) -> None:
    state.timed["dp"], state.timed["fsdp"], state.timed["dp-tp2"] = (deque([time]) for time in (0.3, 0.2, 0.25))
    found = alternative(state, "dp-tp2")
    assert found and found.preset == "fsdp"
    sentence = suggestion(breakdown(waiting=0.1, exposed=0.3), found)
    assert sentence.endswith(", not hidden behind work: fsdp took 200 ms a step in this run, and this one 250 ms.")
    assert "fsdp" not in suggestion(breakdown(input=0.4), found), "another layout does not help"


def test_the_preset_to_try_fits_and_sends_less_as_compiled_or_traced(state: RunState) -> None:
    sent = {
        preset: sum(flow.bytes_sent for flow in flows(compiled.collectives or []))
        for preset, compiled in state.compiled.items()
    }
    least, most = min(sent, key=sent.__getitem__), max(sent, key=sent.__getitem__)
    found = alternative(state, most)
    sizes = [formatting.size(sent[preset]) for preset in (least, most)]
    assert found and found.preset == least
    assert found.reason == f"sends {sizes[0]} per device and step, and this one {sizes[1]}"
    assert alternative(state, least) is None
    cost = StepCost(basis="traced", argument_bytes=1, peak_bytes=2, capacity_bytes=None, collectives=[])
    row = Row(preset="tp", mesh={"model": 8}, pipeline=None, problems=[], laid_out=True, estimate=cost)
    state.estimates = {"tp": row, least: msgspec.structs.replace(row, preset=least)}
    assert alternative(state, least) is None, "it sends nothing, by formula"
    state.ready = msgspec.structs.replace(state.ready, memory_limit=1)
    assert alternative(state, most) is None, "nothing fits"


def test_the_wait_for_the_most_loaded_experts_is_said_beside_their_load() -> None:
    state = RunState()
    found = breakdown(waiting=0.2, exposed=0.1)
    assert wait_words(state, found, "fsdp-tp2") == "", "nothing was measured"
    compiled = described("fsdp-tp2")[0].compiled
    kernel = msgspec.structs.replace(compiled.arrays[0], logical_axes=["experts"], compiled_spec=[["expert"]])
    compiled = msgspec.structs.replace(compiled, arrays=[kernel])
    apply_all(state, [compiled, numbers_measured(8, preset="fsdp-tp2", experts=EXPERTS)])
    of_experts = msgspec.structs.replace(found.collectives[0], axes=["expert"])
    found = msgspec.structs.replace(found, collectives=[*found.collectives, of_experts])
    words = "`expert` part 1 of 2 does 1.12 × the mean of the experts' tokens: collectives over it wait 200 ms, 20 %"
    assert wait_words(state, found, "fsdp-tp2").startswith(words), "the wait over model is none for experts"
    assert wait_words(state, found, "dp") == "", "measured under another preset"


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
    return msgspec.structs.replace(breakdown(), operations=listed, timeline=timeline)


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


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_a_key_shows_the_timeline_with_a_cursor_and_zoom(home: Path, size: tuple[int, int]) -> None:
    async with time_view(recorded(), size) as (app, pilot):
        await press(pilot, "t")
        text = screen_text(app)
        assert "▸0" in text and "compute " in text and "operations" not in text
        await press(pilot, "down", *["right"] * 20)
        assert "▸1" in screen_text(app) and "▲" in screen_text(app)
        await press(pilot, *["plus"] * 3)
        view = app.screen.query_one("TimelineView")
        first, last = view.window
        assert last - first == TICKS // 8
        assert first <= view.cursor < last
        await press(pilot, "full_stop")
        assert view.window == pytest.approx((first + TICKS / 32, last + TICKS / 32), abs=1)
        await press(pilot, "escape")
        assert view.window == (0, TICKS)
        await press(pilot, "t")
        assert "operations" in screen_text(app) and "▸1" not in screen_text(app)


async def test_a_collective_leads_from_time_to_traffic_and_back_and_work_does_not(home: Path) -> None:
    async with time_view(recorded(), (140, 40)) as (app, pilot):
        time = app.screen
        await press(pilot, "slash", *"all-reduce.83", "enter", "enter")
        traffic = app.screen
        assert isinstance(traffic, TrafficScreen) and traffic.table.selected
        assert traffic.table.given[traffic.table.selected].name == "all-reduce.83" and "measured" in screen_text(app)
        await press(pilot, "down", "m")
        assert app.screen is time and time.table.selected
        assert time.table.selected.startswith("all-reduce") and time.table.selected != "all-reduce.83"
        await press(pilot, "escape", "slash", *"ynn_fusion", "enter", "enter")
        assert app.screen is time and time.table.selected.startswith("ynn_fusion")


NO_TIMELINE = profiled(breakdown=breakdown(idle=0.2))


@pytest.mark.parametrize(
    ("events", "key", "says"),
    [
        ([], "9", "No step of this run was profiled."),
        ([NO_TIMELINE], "t", "has no timeline"),
        ([], "h", "--profile-every"),
    ],
)
async def test_what_is_not_there_is_said(home: Path, events: list[Event], key: str, says: str) -> None:
    async with time_view(recorded_run("old-1", *events)) as (app, pilot):
        await pilot.press(key)
        await until(lambda: says in screen_text(app), says)


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
    lines = [line.plain for line in history_lines(found, 10 + 100 + 12, 4)]
    assert [line.split()[0] for line in lines] == ["20", "40", "60", "80"]
    assert [line.count(":") for line in lines] == [5, 25, 45, 65]
    assert all(line.endswith("    1.0 s") for line in lines)
    idle = PartTime(name="idle", seconds=3599.0, share=1.0)
    slow = msgspec.structs.replace(measured(1_234_567), step_seconds=3599.0, parts=[idle])
    (line,) = history_lines([slow], 122, 4)
    assert (line.plain[:10], line.plain[-12:], line.cell_length) == ("1,234,567 ", " 59 min 59 s", 122)


def test_failures_are_in_the_log_and_not_in_the_history() -> None:
    failed = PartsMeasured(step=3, preset="dp", step_seconds=None, parts=[], pause_seconds=1.0, problem="cut off")
    state = RunState()
    apply_all(state, [measured(2), failed, measured(1200, 0.25)])
    assert [each.step for each in state.measured] == [2, 1200]
    words = "step 1,200 of 1.0 s: matrix products 75 %, all-reduce over data: waiting 25 %; paused 2.5 s"
    assert state.measured[-1].line.startswith(words)
    assert failed.line.startswith("no parts of step 3: cut off")


async def test_a_key_shows_the_history(home: Path) -> None:
    async with time_view(recorded_run("tiny-1", measured(100), measured(200, 0.5))) as (app, pilot):
        await pilot.press("h")
        await until(lambda: "1.0 s │" in screen_text(app), "the history below the bar")
        rows = [line.strip("│ ") for line in screen_text(app).splitlines() if line.endswith("1.0 s │")]
        assert [row.split()[0] for row in rows] == ["100", "200"]
        assert ":" not in rows[0] and rows[1].count(":") > 20
