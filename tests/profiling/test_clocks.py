"""Traces of several processes, each by its own clock, give the breakdown of one trace with all devices."""

from pathlib import Path

import pytest
from shardtui.engine.profiling.breakdown import breakdown_of, read_breakdown
from shardtui.engine.profiling.clocks import MAX_ARRIVALS, Clocks, Traced, kept_steps, shared
from shardtui.engine.profiling.recording import Place, read_recording
from shardtui.engine.spec.topology import chip_of
from shardtui.engine.wire.step_breakdown import StepBreakdown

from .test_planes import COPY, FUSION, MODULE, REDUCE, parts
from .xspaces import Space, Timed

STEP = 100
"""Microseconds from one step to the next."""
LATE = (0, 10, 3, 4)
"""Microseconds by which each device is late for the first all-reduce of a step. All begin the second within 1 µs."""
EARLY, LAST = "%all-reduce.2", "%all-reduce.3"


def reduce(name: str, groups: str) -> str:
    return REDUCE.replace(EARLY, name).replace("{{0,1}}", groups)


def operations(device: int, step: int, groups: str) -> list[Timed]:
    early = (reduce(EARLY, groups), 40 + LATE[device], 60)
    times = [(FUSION, 10, 20), early, (COPY, 60, 65), (reduce(LAST, groups), 65, 66)]
    return [(name, step * STEP + begin, step * STEP + end) for name, begin, end in times]


def trace(folder: Path, devices: range, ahead: int, groups: str, epoch: int | None = None) -> Path:
    """A trace of some devices by a clock that is that many microseconds ahead."""
    folder.mkdir()
    space = Space()
    for number, device in enumerate(devices):
        plane = space.plane(f"/device:TPU:{number}")
        runs = [(MODULE, step * STEP + 10 + ahead, step * STEP + 66 + ahead) for step in range(3)]
        plane.line("XLA Modules", runs, run_id=7)
        events = [event for step in range(3) for event in operations(device, step, groups)]
        plane.line("XLA Ops", [(name, begin + ahead, end + ahead) for name, begin, end in events])
    if epoch:
        space.plane("Task Environment").say(profile_start_time=epoch)
    return space.write(folder)


def joint(
    folder: Path, groups: str, ahead: int, epochs: tuple[int | None, int | None] = (None, None)
) -> tuple[StepBreakdown, Clocks]:
    """The breakdown of four devices in two processes. `epochs`: nanoseconds from 1970 until each begins."""
    mesh = {"data": 4}
    recordings = [
        read_recording(
            trace(folder / str(process), range(2 * process, 2 * process + 2), ahead * process, groups, epochs[process]),
            mesh,
            places={number: Place(2 * process + number, 2 * process + number) for number in range(2)},
        )
        for process in range(2)
    ]
    told = [shared(recording) for recording in recordings]
    sums = []
    for process, recording in enumerate(recordings):
        clocks = Clocks(told, recording.program)
        clocks.add_arrivals(recording.arrivals, process)
        sums.append(
            recording.breakdown(clocks.by_clock(process, clocks.window), clocks.by_clock(process, clocks.shown))
        )
    return breakdown_of(recordings[0], sums, clocks.window, clocks.shown, chip_of(recordings[0].trace.kind)), clocks


@pytest.mark.parametrize("groups", ["{{0,1,2,3}}", "{{0,2},{1,3}}"])
@pytest.mark.parametrize("ahead", [0, 5_000])
def test_two_traces_give_the_breakdown_of_one(tmp_path: Path, groups: str, ahead: int) -> None:
    whole = read_breakdown(trace(tmp_path / "whole", range(4), 0, groups), {"data": 4})
    breakdown, clocks = joint(tmp_path, groups, ahead)
    offset = clocks.offsets[1]
    assert offset and offset.picoseconds == -ahead * 10**6, "the short all-reduce bounds it from both sides alike"
    assert clocks.error == 10**6, "it takes 1 µs"
    assert parts(breakdown) == pytest.approx(parts(whole))
    assert [(wait.device, wait.count) for wait in breakdown.waits] == [
        (wait.device, wait.count) for wait in whole.waits
    ]
    assert [wait.seconds for wait in breakdown.waits] == pytest.approx([wait.seconds for wait in whole.waits])
    assert (breakdown.processes, len(breakdown.devices)) == (2, 4)
    assert breakdown.timeline == whole.timeline


@pytest.mark.parametrize(("wrong", "error"), [(0, 1), (400, 1.4), (-700, 1.7), (50_000, 2)])
def test_the_clocks_of_hosts_are_believed_as_far_as_collectives_allow(tmp_path: Path, wrong: int, error: float) -> None:
    """`wrong`: nanoseconds by which one host's clock is. The shortest all-reduce allows 1 µs to both sides."""
    _, clocks = joint(tmp_path, "{{0,1,2,3}}", 5_000, epochs=(70 * 10**9, 70 * 10**9 - 5_000_000 + wrong))
    offset = clocks.offsets[1]
    assert offset and offset.picoseconds == (-5_000_000 + max(-1000, min(wrong, 1000))) * 1000
    assert clocks.error == error * 10**6


def test_steps_are_those_of_all_processes_as_many_as_there_is_room_for() -> None:
    one, other = Traced([4, 5, 6, 7], 40), Traced([5, 6, 7, 8], 80)
    assert kept_steps([one, other]) == [5, 6, 7]
    assert kept_steps([one, Traced([], 0)]) == []
    many = Traced([5, 6, 7], 3 * MAX_ARRIVALS // 4)
    assert kept_steps([many, many]) == [5, 6], "each step takes half of the room"
    assert kept_steps([many] * 64) == [5], "one at least"
    assert kept_steps([Traced([1, 2], 0)] * 2) == [1, 2], "no common collective"


def test_processes_without_a_common_collective_begin_together(tmp_path: Path) -> None:
    groups = "{{0,1},{2,3}}"
    whole = read_breakdown(trace(tmp_path / "whole", range(4), 0, groups), {"data": 4})
    breakdown, clocks = joint(tmp_path, groups, 5_000)
    assert clocks.offsets[1] is None and clocks.error is None
    assert parts(breakdown) == pytest.approx(parts(whole))
