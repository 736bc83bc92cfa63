"""The Time view, the tables of `shardtui profile`, and the sentence that says what to try."""

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.base import formatting
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.planning.ranking import Row, StepCost
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import EngineStopped, Profiled, ProfileFailed
from shardtui.engine.wire.step_breakdown import CollectiveTime, DeviceTime, PartTime, StepBreakdown, WaitTime
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.messages import EventsArrived
from shardtui.tui.state.alternative import alternative
from shardtui.tui.state.bottleneck import suggestion
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.step_bar import bar_lines, device_rows

from ..conftest import killed_after
from ..profiling.xspaces import Space
from ..recorded import recorded_run
from ..schemas import checked
from .recordings import EVENTS, recorded
from .test_app import until

CLI = [sys.executable, "-m", "shardtui.tui", "profile"]


def breakdown(devices: int = 8, **seconds: float) -> StepBreakdown:
    """A breakdown of these parts, in seconds, with one all-reduce over `model`; the rest of a second is products."""
    name = "all-reduce over model"
    found = {part.replace("_", " "): time for part, time in seconds.items()}
    waiting, exposed = found.pop("waiting", 0.0), found.pop("exposed", 0.0)
    times = {**found, f"{name}: waiting": waiting, f"{name}: exposed": exposed}
    times = {"matrix products": 1 - sum(times.values()), **times}
    collective = CollectiveTime(
        name="all-reduce.1",
        kind="all-reduce",
        axes=["model"],
        count=4,
        seconds=waiting + exposed,
        waiting_seconds=waiting,
        exposed_seconds=exposed,
        hidden_seconds=0.0,
        predicted_seconds=None,
        bytes=1000,
        source="/home/me/model.py:3",
    )
    return StepBreakdown(
        program="jit_step",
        mesh={"data": devices // 2, "model": 2},
        steps=5,
        step_seconds=1.0,
        clock_seconds=1.01,
        parts=[PartTime(name=part, seconds=time, share=time) for part, time in times.items()],
        devices=[DeviceTime(device=device, seconds=list(times.values())) for device in range(devices)],
        collectives=[collective],
        operations=[],
        operations_left_out=0,
        waits=[WaitTime(device=device, count=4, seconds=waiting / devices) for device in range(devices)],
        skipped=[],
    )


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


async def opened(size: tuple[int, int], keys: list[str]) -> str:
    app = ShardtuiApp(EngineClient(recorded()), starts=False)
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("9")
        await until(lambda: app.current_mode == "time" and app.screen.query("DataTable"), "the view")
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        await until(lambda: "all-reduce.83" in screen_text(app), "the operations")
        return screen_text(app)


def test_the_filter_leaves_collectives(home: Path) -> None:
    text = asyncio.run(opened((140, 40), ["slash", *"all-reduce", "enter"]))
    assert "all-reduce.83" in text and "ynn_fusion" not in text


def test_times_are_never_cut_in_80_columns(home: Path) -> None:
    text = asyncio.run(opened((80, 24), []))
    assert "all-reduce.83" in text and "waiting 30 %" in text and "expo " not in text


async def requested(event: Profiled | ProfileFailed) -> tuple[str, str]:
    """Presses p on a run that then reports `event`. Returns the view that is open, and its text."""
    app = ShardtuiApp(EngineClient(recorded_run()), starts=False)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(lambda: app.state.is_over, "the history")
        await app.run_action("profile")
        app.awaits_profile = True  # a run that has ended takes no request
        app.post_message(EventsArrived([msgspec.structs.replace(event, time=time.time())]))
        await until(lambda: not app.awaits_profile, "what the run reports")
        await pilot.pause()
        mode, text = app.current_mode, screen_text(app)
        await pilot.press("0")
        await pilot.pause()
        return mode, text + screen_text(app)


def test_the_view_opens_when_the_requested_breakdown_is_there(home: Path) -> None:
    profiled = Profiled(step=9, steps=5, directory="/x", preset="dp-tp2", breakdown=breakdown(exposed=0.4))
    mode, text = asyncio.run(requested(profiled))
    assert mode == "time"
    assert "dp-tp2: a step of 1.0 s" in text and "steps 5 to 9" in text


@pytest.mark.parametrize(
    "event",
    [
        Profiled(step=9, steps=5, directory="/x", preset="dp", problem="too large"),
        ProfileFailed(step=9, problems=["no room"]),
    ],
)
def test_the_view_does_not_open_without_a_breakdown(home: Path, event: Profiled | ProfileFailed) -> None:
    mode, text = asyncio.run(requested(event))
    assert mode != "time"
    assert "too large" in text or "no room" in text


async def unprofiled() -> None:
    app = ShardtuiApp(EngineClient(recorded_run()), starts=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("9")
        await until(lambda: "No step of this run was profiled." in screen_text(app), "the view")


def test_without_a_breakdown_the_view_says_so(home: Path) -> None:
    asyncio.run(unprofiled())


def test_a_run_that_has_ended_shows_its_last_profile(home: Path) -> None:
    name = recorded().name
    text = subprocess.run([*CLI, name], capture_output=True, text=True, check=True).stdout
    assert "all-reduce over model: waiting" in text and "devices that others wait for" in text
    found = subprocess.run([*CLI, name, "--json"], capture_output=True, text=True, check=True).stdout
    report = checked("profile", found)
    assert sum(part["seconds"] for part in report["parts"]) == pytest.approx(report["step_seconds"], rel=1e-3)
    both = subprocess.run([*CLI, name, "--diff", name, "--json"], capture_output=True, text=True, check=True).stdout
    assert all(part["seconds"] == part["other_seconds"] for part in checked("profile-diff", both)["parts"])
    tables = subprocess.run([*CLI, name, "--diff", name], capture_output=True, text=True, check=True).stdout
    assert "+0 µs" in tables


def test_a_run_without_a_profile_is_refused(home: Path) -> None:
    recorded_run("tiny-1", EngineStopped(step=4, reason="stopped"))
    result = subprocess.run([*CLI, "tiny-1"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert "never profiled" in result.stderr


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (b"\xff" * 50, [], "not a whole trace"),
        (b"", [], "no operation of a device"),
        (b"", ["--hlo", "/nowhere"], "--hlo /nowhere: cannot be read"),
        (None, [], "no .xplane.pb below it"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused(
    home: Path, content: bytes | None, options: list[str], problem: str
) -> None:
    path = home / "trace"
    path.mkdir() if content is None else path.write_bytes(content)
    result = subprocess.run([*CLI, str(path), *options], capture_output=True, text=True)
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
    options = ["--mesh", "data=2", "--hlo", str(text), "--json"]
    result = subprocess.run([*CLI, str(space.write(home)), *options], capture_output=True, text=True, check=True)
    report = json.loads(result.stdout)
    assert report["parts"][0]["share"] > 0.5, "a matrix product"
    assert (report["program"], report["steps"], report["mesh"]) == ("jit_mine", 3, {"data": 2})


@pytest.mark.slow
def test_a_run_that_trains_is_profiled_on_request(home: Path) -> None:
    small = ["--seq-len", "16", "--batch-size", "8", "--set", "layers=1", "--set", "embed=32", "--set", "mlp=64"]
    command = [*CLI[:-1], "train", "--run", "live", "--preset", "dp-tp2", "--steps", "1000000", *small]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        with killed_after(300, run.pid):
            assert run.stderr and any(line.startswith("step ") for line in run.stderr)
        answer = subprocess.run([*CLI, "live", "--steps", "2", "--json"], capture_output=True, text=True, timeout=300)
        subprocess.run([*CLI[:-1], "stop", "live"], capture_output=True, check=True)
        run.communicate()
    report = checked("profile", answer.stdout)
    assert (report["steps"], report["mesh"]) == (2, {"data": 4, "model": 2})
    assert "tracing 2 steps" in answer.stderr


def recorded_state() -> RunState:
    """The state after the recorded run, in which `dp`, `fsdp` and `dp-tp2` trained."""
    state = RunState()
    for events in LogReader(EVENTS).read():
        apply_all(state, events)
    return state


def sent_under(state: RunState, preset: str) -> int:
    return sum(flow.bytes_sent for flow in flows(state.compiled[preset].collectives or []))


def test_the_preset_to_try_was_faster_in_this_run() -> None:
    state = recorded_state()
    state.timed["dp"], state.timed["fsdp"], state.timed["dp-tp2"] = (deque([time]) for time in (0.3, 0.2, 0.25))
    found = alternative(state, "dp-tp2")
    assert found and found.preset == "fsdp" and "took 200 ms a step in this run, and this one 250 ms" in found.reason
    sentence = suggestion(breakdown(waiting=0.1, exposed=0.3), found)
    assert sentence == (
        "40 % of the step goes to all-reduce over model, not hidden behind work: fsdp took 200 ms a step in this run, "
        "and this one 250 ms."
    )
    assert "fsdp" not in suggestion(breakdown(input=0.4), found), "another layout does not help"


def test_the_preset_to_try_sends_less_as_compiled_or_by_formula() -> None:
    state = recorded_state()
    state.timed.clear()
    least = min(state.compiled, key=lambda preset: sent_under(state, preset))
    most = max(state.compiled, key=lambda preset: sent_under(state, preset))
    found = alternative(state, most)
    assert found and found.preset == least
    amounts = [formatting.size(sent_under(state, preset)) for preset in (least, most)]
    assert found.reason == f"sends {amounts[0]} per device and step, and this one {amounts[1]}"
    assert alternative(state, least) is None
    cost = StepCost(argument_bytes=1, peak_bytes=2, capacity_bytes=None, collectives=[])
    row = Row(preset="tp", mesh={"model": 8}, pipeline=None, problems=[], laid_out=True, estimate=cost)
    state.estimates = {"tp": row, least: msgspec.structs.replace(row, preset=least)}
    assert alternative(state, least) is None, "it sends nothing, by formula"


def test_a_preset_that_does_not_fit_is_not_to_try() -> None:
    state = recorded_state()
    state.timed.clear()
    most = max(state.compiled, key=lambda preset: sent_under(state, preset))
    assert state.ready
    state.ready = msgspec.structs.replace(state.ready, memory_limit=1)
    assert alternative(state, most) is None
