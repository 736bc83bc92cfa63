"""Where the wall time of a run went, by events that are made up."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.events import AnyEvent
from shardtui.tui.state.goodput import Goodput, Part, WallTime, goodput_words
from shardtui.tui.state.interpreter import apply, apply_all
from shardtui.tui.state.run_state import RunState
from shardtui.tui.widgets.status_bar import status_line

from ..recorded import restored, started, steps, switched
from .test_run_state import START

STARTED, COMPILING, COMPILED, TRAINING = START


def saving(step: int, seconds: float) -> wire.CheckpointSaving:
    return wire.CheckpointSaving(step=step, stall_seconds=seconds)


def saved(step: int) -> wire.CheckpointSaved:
    return wire.CheckpointSaved(step=step, bytes=1, arrays=1, seconds=1.0)


def wall_time_of(events: Iterable[AnyEvent]) -> WallTime:
    state = RunState()
    apply_all(state, events)
    return state.wall_time


def goodput(*events: tuple[float | None, AnyEvent], now: float | None = None) -> dict[str, float]:
    """Returns the parts that are not 0 of a run whose events occur at the given seconds, or are made by a viewer."""
    wall_time = wall_time_of(event if at is None else replace(event, time=1e9 + at) for at, event in events)
    found = wall_time.until(None if now is None else 1e9 + now)
    assert sum(found.parts.values()) == pytest.approx(found.wall_seconds)
    return {part: seconds for part, seconds in found.parts.items() if seconds > 1e-5}


def about(**seconds: float) -> object:
    """These parts and no others, with 4 s of starting and compiling by default. The clock says microseconds."""
    parts = {"starting": 4, "compiling": 4, **seconds}
    return pytest.approx({name.replace("_", " "): value for name, value in parts.items()}, abs=1e-5)


def done(last: int, count: int = 10) -> wire.StepsDone:
    return steps(last, *[1.0] * count)


BEGUN = ((0, STARTED), (3, COMPILING), (7, COMPILED), (8, TRAINING))
TEN = (*BEGUN, (9, done(10)))
MEMORY = wire.MemoryMeasured(source="allocator", bytes_in_use=1, peak_bytes=None, limit_bytes=None, bytes_by_device={})
STOPPED = wire.EngineStopped(step=10, reason="stopped")
SWITCHING = wire.Switching(to_preset="tp", step=10)
FAILED = wire.SwitchFailed(to_preset="tp", step=10, problems=["no memory"], preset="dp")
WRITING = wire.ProfileWriting(step=10, steps=5)
WRITTEN = wire.Profiled(step=10, steps=5, directory="profile", preset="dp")
PAUSED, RESUMED = wire.Paused(step=10), wire.Resumed(step=10)
ONE, TWO = {"steps": 0.99, "input_wait": 0.01}, {"steps": 1.98, "input_wait": 0.02}
"""The parts of one report and of two."""

CASES: dict[str, tuple[list[tuple[float, AnyEvent]], dict[str, float]]] = {
    "what is reported during steps divides nothing": (
        [
            *((9.5, each) for each in (wire.PresetCompiling(preset="tp", ahead=True), COMPILED, saved(5), MEMORY)),
            (10, done(20)),
        ],
        TWO,
    ),
    "a checkpoint counts from the last step, with the wait for the one before": (
        [(11, saved(5)), (12, saving(10, 0.5)), (13, done(20)), (15, saved(10))],
        {**TWO, "checkpoints": 3},
    ),
    "the end waits for the last checkpoint": (
        [(10, saving(10, 1.0)), (13, saved(10)), (13.5, STOPPED)],
        {**ONE, "checkpoints": 4, "other": 0.5},
    ),
    "the end waits for it in a pause": (
        [(9, PAUSED), (12, saving(10, 1.0)), (15, saved(10)), (15, STOPPED)],
        {**ONE, "paused": 2, "checkpoints": 4},
    ),
    "a pause is without the steps, switches and saves in it": (
        [
            *((9, PAUSED), (20, done(11, count=1)), (30, SWITCHING), (33, switched(stall_seconds=2.9))),
            *((43, saving(1, 2.0)), (48, wire.Resumed(step=1)), (49, done(21))),
        ],
        {"paused": 10.9 + 10 + 8 + 5, "switching": 3, "checkpoints": 2, "steps": 1.98 + 0.09, "input_wait": 0.03},
    ),
    "a switch and the compilation that it waited for": (
        [(14, SWITCHING), (16, switched()), (17, done(20))],
        {**TWO, "compiling": 4 + 5, "switching": 2},
    ),
    "an evaluation counts as long as it took": (
        [(12, wire.Evaluated(step=10, loss=2.0, batches=4, seconds=2.0))],
        {**ONE, "evaluation": 2, "other": 1},
    ),
    "a switch that failed": ([(9, SWITCHING), (12, FAILED), (13, done(20))], {**TWO, "switching": 3}),
    "a trace that is written": ([(9, WRITING), (13, WRITTEN), (14, done(20))], {**TWO, "tracing": 4}),
    "steps after going back are repeated up to where the run was": (
        [(11, restored(4, seconds=2.0)), (12, done(14))],
        {"checkpoints": 2, "steps": 0.99 * 1.4, "repeated_steps": 0.99 * 0.6, "input_wait": 0.02},
    ),
    **{
        f"a pause in which the clock is set {seconds:+,} s": (
            [(9, PAUSED), (9.5 + seconds, wire.ClockChanged(seconds=seconds)), (12 + seconds, RESUMED)],
            {**ONE, "paused": 3},
        )
        for seconds in (3600, -3600)
    },
}


@pytest.mark.parametrize(("events", "parts"), CASES.values(), ids=CASES)
def test_time_is_divided_among_parts(events: list[tuple[float, AnyEvent]], parts: dict[str, float]) -> None:
    assert goodput(*TEN, *events) == about(**parts)


def test_a_crash_counts_as_no_engine_from_the_last_event_on() -> None:
    starting = ((60, STARTED), (61, COMPILING), (62, COMPILED))
    again = (*starting, (64, restored(6, seconds=1.5)), (65, TRAINING), (66, done(16)))
    crashed = (*TEN, (9.3, saved(6)))
    found = goodput(*crashed, *again)
    trained = {"steps": 0.99 * 1.6, "repeated_steps": 0.99 * 0.4, "input_wait": 0.02}
    assert found == about(starting=6.5, compiling=5, **trained, checkpoints=1.5, other=0.3, no_engine=60 - 9.3)
    assert goodput(*crashed, (None, wire.EngineLost(reason="SIGKILL")), *again) == found


def test_a_live_run_counts_what_goes_on_until_now() -> None:
    assert goodput(*TEN, (9, PAUSED), now=20)["paused"] == 11
    assert goodput(*BEGUN[:2], now=5)["compiling"] == 2
    assert "other" not in goodput(*TEN, now=20), "steps that are not reported yet"
    assert goodput(*BEGUN, (9.5, done(10))) == about(**ONE, other=0.5), "time after the steps"
    ended = (*TEN, (9, wire.EngineStopped(step=10, reason="finished")))
    assert goodput(*ended, now=99) == goodput(*ended)


MOMENTS = st.one_of(
    st.sampled_from([STARTED, COMPILING, COMPILED, TRAINING, PAUSED, RESUMED, saved(1)]),
    st.sampled_from([SWITCHING, switched(stall_seconds=3.0), FAILED, WRITING, WRITTEN, STOPPED]),
    st.just(wire.Failed(problems=[], refused=False)),
    st.builds(saving, st.integers(1, 30), st.floats(0, 9)),
    st.builds(restored, st.integers(1, 30), seconds=st.floats(0, 9)),
    st.builds(done, st.integers(10, 30), st.integers(0, 10)),
)
HISTORIES = st.lists(st.tuples(st.floats(0, 5), MOMENTS), min_size=1, max_size=30)
"""Events in any order, as in a damaged log, each some seconds after the one before."""


def timed(history: list[tuple[float, AnyEvent]]) -> list[AnyEvent]:
    times = itertools.accumulate((after for after, _ in history), initial=1e9)
    return [replace(event, time=at) for at, (_, event) in zip(times, history, strict=False)]


@given(HISTORIES)
def test_the_parts_add_up_to_the_clock(history: list[tuple[float, AnyEvent]]) -> None:
    events = timed(history)
    wall_time = wall_time_of(events)
    found = wall_time.until(None)
    assert all(seconds >= 0 for seconds in found.parts.values())
    assert sum(found.parts.values()) == pytest.approx(found.wall_seconds, abs=1e-5)
    first = sum(events[0].step_seconds) if isinstance(events[0], wire.StepsDone) else 0.0
    clock = events[-1].time - events[0].time + first
    assert found.wall_seconds <= clock + 1e-5  # less by what no event has ended yet
    wall_time.add(started(time=events[-1].time))
    assert wall_time.until(None).wall_seconds == pytest.approx(clock, abs=1e-5)


@given(HISTORIES, st.floats(0, 9))
def test_a_pause_is_found_whole_and_takes_nothing_from_others(
    history: list[tuple[float, AnyEvent]], pause: float
) -> None:
    events = timed(history)
    last = events[-1].time
    wall_time = wall_time_of([*events, *(replace(event, time=last) for event in (TRAINING, RESUMED, PAUSED))])
    before = wall_time.until(None).parts
    wall_time.add(replace(RESUMED, time=last + pause))
    after = wall_time.until(None).parts
    assert after == pytest.approx(before | {Part.PAUSED: before[Part.PAUSED] + pause}, abs=1e-5)


@given(HISTORIES)
def test_many_reports_at_once_are_the_same_as_one_by_one(history: list[tuple[float, AnyEvent]]) -> None:
    """As far as steps do not take longer than the time between their reports, which they never do."""
    events = timed([(max(after, 1.1), event) for after, event in history])
    one_by_one = RunState()
    for event in events:
        apply(one_by_one, event)
    found = wall_time_of(events).until(None).parts
    assert found == pytest.approx(one_by_one.wall_time.until(None).parts, abs=1e-5)


@given(HISTORIES, st.integers(0, 29), st.floats(0, 1e5))
def test_a_clock_that_is_set_back_makes_no_part_negative(
    history: list[tuple[float, AnyEvent]], at: int, back: float
) -> None:
    events = timed(history)
    moved = [*events[:at], *(replace(event, time=event.time - back) for event in events[at:])]
    wall_time = wall_time_of(moved)
    found = wall_time.until(None)
    assert all(seconds >= 0 for seconds in found.parts.values())
    assert found.wall_seconds <= events[-1].time - events[0].time + 1 + 1e-5


def test_the_header_of_an_ended_run_says_it() -> None:
    state = RunState()
    apply_all(state, [replace(event, time=1e9 + at) for at, event in enumerate((*START, done(10)))])
    assert "goodput" not in status_line(state, 80, 0.0).plain
    apply(state, wire.EngineStopped(step=10, reason="finished", time=1e9 + 4))
    assert status_line(state, 80, 0.0).plain.endswith("goodput 25 %  step 10  ■ stopped")


def test_words_begin_with_steps_and_fit_and_say_what_is_unknown() -> None:
    nothing = dict.fromkeys((f"{part.name.lower()}_seconds" for part in Part), 0.0)
    seconds = {"checkpoints_seconds": 4.0, "compiling_seconds": 3.0, "paused_seconds": 2.0, "tracing_seconds": 0.3}
    found = Goodput(wall_seconds=100.0, share=0.907, **{**nothing, "steps_seconds": 90.7, **seconds})
    assert goodput_words(found) == "91 % steps · 4 % checkpoints · 3 % compiling · 2 % paused"
    assert goodput_words(found, 50) == "91 % steps · 4 % checkpoints · 3 % compiling"
    assert goodput_words(found, 5) == "91 % steps"
    without = wall_time_of([replace(STARTED, time=1e9), replace(done(10), time=1e9 + 1, input_wait_seconds=None)])
    assert without.until(None).input_seconds is None
    assert goodput_words(without.until(None)) == "100 % steps · input wait unknown"
    assert (WallTime().until(5e9).share, goodput_words(WallTime().until(None))) == (None, "")
    assert wall_time_of([*START, done(10)]).until(None).wall_seconds == 0, "events without a time"
