"""The Time view, the tables of `shardtui profile`, and the sentence that says what to try."""

import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.base import formatting
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.planning.ranking import Row, StepCost
from shardtui.engine.wire.events import Profiled, ProfileFailed
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.engine.wire.step_breakdown import CollectiveTime, DeviceTime, PartTime, StepBreakdown, WaitTime
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.messages import EventsArrived
from shardtui.tui.state.alternative import alternative
from shardtui.tui.state.bottleneck import suggestion
from shardtui.tui.state.experts import wait_words
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.step_bar import bar_lines, device_rows
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
    spent = {"seconds": waiting + exposed, "waiting_seconds": waiting, "exposed_seconds": exposed}
    about = {"name": "all-reduce.1", "kind": "all-reduce", "axes": ["model"], "count": 4, "bytes": 1000}
    collective = CollectiveTime(
        **about, **spent, hidden_seconds=0.0, predicted_seconds=None, source="/home/me/model.py:3"
    )
    return StepBreakdown(
        program="jit_step",
        steps=5,
        step_seconds=1.0,
        clock_seconds=1.01,
        collectives=[collective],
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
    found = breakdown(waiting=0.4, exposed=0.1)
    slow = [WaitTime(device=5, count=4, seconds=0.4), WaitTime(device=1, count=1, seconds=0.01)]
    assert "waiting for device 5" in suggestion(msgspec.structs.replace(found, waits=slow))


def test_all_bars_are_equally_long_and_devices_fold() -> None:
    found = breakdown(devices=300, waiting=0.123, exposed=0.2, idle=0.017)
    rows = device_rows(found, 8)
    assert [name for name, _ in rows] == [f"{at}–{min(at + 37, 299)}" for at in range(0, 300, 38)]
    bars = bar_lines(found, 80, 8)[:9]
    assert {bar.cell_length for bar in bars} == {80}
    assert all(bar.plain.count(":") == 9 for bar in bars)  # 0.123 of 72


@asynccontextmanager
async def time_view(
    directory: RunDirectory, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[ShardtuiApp, Pilot[None]]]:
    async with finished(directory, size) as (app, pilot):
        await pilot.press("9")
        await until(lambda: app.current_mode == "time" and app.screen.query("DataTable"), "the view")
        await pilot.pause()
        yield app, pilot


async def test_no_time_is_cut_in_80_columns_and_the_filter_leaves_collectives(home: Path) -> None:
    async with time_view(recorded()) as (app, pilot):
        row = "│ all-reduce over m…  blocks/attention    14.1 %   72 ms  blocks.py:88"
        await until(lambda: row in screen_text(app), "the operations")
        text = screen_text(app)
        assert "waiting 30 %" in text and "other fusions" in text and "operation: all-reduce.99" in text
        await pilot.press("slash", *"all-reduce", "enter")
        await until(lambda: "other fusions" not in screen_text(app), "collectives alone")
        assert "│ all-reduce over m…  blocks/attention  14.1 %   72 ms  blocks.py:88" in screen_text(app)


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


async def test_without_a_breakdown_the_view_says_so(home: Path) -> None:
    async with finished(recorded_run(), (80, 24)) as (app, pilot):
        await pilot.press("9")
        await until(lambda: "No step of this run was profiled." in screen_text(app), "the view")


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


MINE = """HloModule jit_mine, num_partitions=2

ENTRY %main (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %gemm.1 = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_trace_of_another_program_is_read(home: Path) -> None:
    space = Space()
    for device in (0, 1):
        plane = space.plane(f"/device:GPU:{device}")
        plane.kernels("Stream #7(Compute)", [("gemm.1", at, at + 8) for at in (0, 10, 20)], "jit_mine")
    text = home / "mine.hlo"
    text.write_text(MINE)
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
    assert sentence == (
        "40 % of the step goes to all-reduce over model, not hidden behind work: fsdp took 200 ms a step in this run, "
        "and this one 250 ms."
    )
    assert "fsdp" not in suggestion(breakdown(input=0.4), found), "another layout does not help"


def test_the_preset_to_try_fits_and_sends_less_as_compiled_or_traced(state: RunState) -> None:
    sent = {
        preset: sum(flow.bytes_sent for flow in flows(compiled.collectives or []))
        for preset, compiled in state.compiled.items()
    }
    least, most = min(sent, key=sent.__getitem__), max(sent, key=sent.__getitem__)
    found = alternative(state, most)
    assert found and found.preset == least
    amounts = [formatting.size(sent[preset]) for preset in (least, most)]
    assert found.reason == f"sends {amounts[0]} per device and step, and this one {amounts[1]}"
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
