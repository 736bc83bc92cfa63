"""The state that events lead to."""

import math

import msgspec
import pytest
from shardtui.engine.spec.attempt import Attempt, LostProcess
from shardtui.engine.spec.preset import PipelineInfo
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.checkpoints import CheckpointInfo
from shardtui.engine.wire.descriptions import DeviceInfo, MeshInfo
from shardtui.engine.wire.events import AnyEvent, Level
from shardtui.engine.wire.hosts import HostInfo
from shardtui.tui.screens.log import LogRows
from shardtui.tui.state.interpreter import apply, apply_all
from shardtui.tui.state.run_state import Phase, RunState
from shardtui.tui.widgets.headline import Figure, headline, large_digits, small_line
from shardtui.tui.widgets.lines import bar
from shardtui.tui.widgets.panels import AboutPreset, ThisStep
from shardtui.tui.widgets.status_bar import status_line

from ..conftest import READY, tiny_config
from ..recorded import preset_info, restored, started, steps, switched

DP = MeshInfo({"data": 8}, list(range(8)))
START: list[AnyEvent] = [
    started(),
    wire.PresetCompiling(preset="dp"),
    wire.PresetCompiled(
        preset="dp", mesh=DP, arrays=[], collectives=[], memory=None, compile_seconds=1.0, from_cache=False
    ),
    wire.TrainingStarted(preset="dp"),
]


def after(*events: AnyEvent) -> RunState:
    state = RunState()
    for event in [*START, *events]:
        apply(state, event)
    return state


def test_phases_of_a_starting_run_and_of_a_switch_with_and_without_a_pause() -> None:
    def phases(*events: AnyEvent) -> str:
        return " ".join(after(*events[:count]).phase for count in range(len(events) + 1))

    state = RunState()
    assert state.phase is Phase.STARTING
    for event, phase in zip(START, ("starting", "compiling", "compiling", "training"), strict=True):
        apply(state, event)
        assert state.phase == phase
    switching = wire.Switching(to_preset="tp", step=3)
    assert phases(wire.PresetCompiling(preset="tp"), switching, switched()) == "training training switching training"
    paused = phases(wire.Paused(step=3), switching, switched(), wire.Resumed(step=3))
    assert paused == "training paused switching paused training"


def test_losses_are_kept_and_step_times_are_grouped_by_preset() -> None:
    state = after(steps(2, 3.0, 2.5), steps(3, None), switched(), steps(5, 2.0, 1.9, seconds=0.2))
    assert state.step == 5
    assert list(state.losses[:2]) == [3.0, 2.5]
    assert math.isnan(state.losses[2])
    assert (state.seconds_under("dp"), state.seconds_under("tp")) == (0.1, 0.2)
    assert state.preset == "tp"
    assert [switch.step for switch in state.switches] == [3]
    assert state.input_wait == 0.01 / 0.4


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_report_does_not_shift_other_losses(missing: int) -> None:
    """For example if the disk was full for a moment. Holds for single events and for many applied together."""
    reports = [steps(last, last - 1.0, float(last)) for last in (2, 4, 6)]
    remaining = [report for number, report in enumerate(reports) if number != missing]
    known = {float(step) for report in remaining for step in report.losses}
    at_once = RunState()
    apply_all(at_once, [*START, *remaining])
    for state in (after(*remaining), at_once):
        assert len(state.losses) == remaining[-1].step == state.step
        assert [loss for loss in state.losses if loss == loss] == sorted(known)
        assert all(state.losses[int(loss) - 1] == loss for loss in known)


def test_repeated_steps_replace_their_losses_and_marks() -> None:
    """For example if the line of the restored checkpoint is missing from the history."""
    spike = wire.Spiked(step=2, name="loss", value=9.0, usual=3.0, deviation=0.1)
    again = [steps(1, 4.0), spike, steps(2, 9.0)]
    state = after(*again, *again, steps(4, 3.0, 2.0, 1.0), steps(3, 2.5))
    assert (state.step, list(state.losses), state.marks) == (3, [4.0, 3.0, 2.5], [(1, "spike")])
    apply(state, wire.TrainingStarted(preset="dp", step=1))
    assert list(state.losses) == [4.0]


def test_steps_during_a_compilation_do_not_count_for_their_preset() -> None:
    state = after(steps(1, 2.0, seconds=0.1), wire.PresetCompiling(preset="tp"), steps(4, 2.0, 2.0, 2.0, seconds=0.5))
    assert state.seconds_under("dp") == 0.1
    assert state.seconds_per_step == 0.5
    apply(state, wire.SwitchCancelled(to_preset="tp"))
    apply(state, steps(5, 2.0, seconds=0.2))
    assert state.seconds_under("dp") == 0.2 == state.seconds_per_step


def test_a_failed_or_cancelled_switch_changes_nothing() -> None:
    """Also if its first step fails, after which a restored checkpoint is reported first."""
    failed = wire.SwitchFailed(to_preset="tp", step=3, problems=["out of memory"], preset="dp")
    state = after(wire.PresetCompiling(preset="tp"), wire.Switching(to_preset="tp", step=3), failed)
    assert (state.preset, state.phase, state.compiling, state.failed_switch) == ("dp", Phase.TRAINING, None, failed)
    assert after(wire.PresetCompiling(preset="tp"), wire.SwitchCancelled(to_preset="tp")).compiling is None
    back = restored(2, preset="dp")
    for events in ([back], [back, msgspec.structs.replace(failed, step=2)], [failed]):
        assert after(switched(), *events).preset == "dp"


def test_the_first_process_that_exited_is_named() -> None:
    assert after(wire.EngineLost(reason="killed")).problems == ["killed"]
    hosts = [HostInfo(process=number, processes=2, name=f"host-{number}", pid=100 + number) for number in range(2)]
    ready = msgspec.structs.replace(READY, hosts=hosts)
    state = after(ready, steps(3, 2.0), wire.EngineLost(reason="killed", process=1))
    assert state.hosts_lost == {1: "killed"}
    assert state.problems == ["process 1 (host-1, pid 101) was lost at step 3: killed"]


def test_an_attempt_says_what_the_loss_of_a_process_cost() -> None:
    killed = LostProcess(1, "its process was ended by SIGKILL")
    lost = Attempt(number=2, supervisor=6, processes=3, of=4, lost=killed)
    taken_in = Attempt(number=3, supervisor=6, processes=4, of=4)
    events = [
        started(attempt=Attempt(number=1, supervisor=6, processes=4, of=4), time=1.0),
        steps(30, *[1.0] * 30, seconds=0.5, time=20.0),
        started(attempt=lost, time=23.0),
        steps(28, *[1.0] * 8, seconds=0.5, time=31.0),
        steps(40, *[1.0] * 12, seconds=0.5, time=37.0),
        started(attempt=taken_in, time=38.0),
    ]
    first, second = (recovery.words for recovery in after(*events).attempts.recoveries)
    assert first == (
        "attempt 2 (3 of 4 processes) after step 30: 7.0 s without steps, 10 made again; process 1 lost: its process "
        "was ended by SIGKILL"
    )
    assert second == "attempt 3 after step 40: no step yet; a host was taken in"
    lines = [status_line(after(*events[:count]), 90, 37.0).plain for count in (2, 5, 6)]
    assert ["attempt" in line for line in lines] == [False, True, True]
    assert "attempt 2, 3 of 4 processes" in lines[1]


def test_every_event_except_steps_is_logged_as_text() -> None:
    wrong = wire.WrongDevice(5, "TPU v4", 1, "host-1")
    differing = wire.DevicesDiffer(step=9, devices=[wrong], is_certain=True, arrays=["x"], problem="device 5 differs")
    stalled = wire.Stalled(seconds=21.0, where="batch (lm.py:27)")
    found = msgspec.structs.replace(stalled, verdict="process 1 is stuck in …", stacks="/r/stacks.txt")
    refused = wire.CommandRefused(problem="too long")
    state = after(steps(1, 2.0), switched(), stalled, found, refused, differing)
    assert [event.line for event in state.events if event is not refused][len(START) :] == [
        "dp → tp at step 3: moved 1.5 MB, stalled 31 ms, compiled with its transfers in 2.0 s while training, "
        "all 64 digests equal (64-bit)",
        "stalled for 21.0 s in batch (lm.py:27)",
        "stalled for 21.0 s in batch (lm.py:27): process 1 is stuck in …: stacks in /r/stacks.txt",
        "device 5 differs",
    ]
    assert refused in state.events
    assert (state.differing, state.hosts, differing.level) == (differing, {}, Level.ERROR)


def test_a_refusal_answers_what_this_viewer_has_requested() -> None:
    state = after(steps(1, 2.0))
    state.requested, state.numbers.is_requested = "tp", True
    apply(state, wire.CommandRefused(problem="100 commands are already waiting"))
    assert (state.requested, state.numbers.is_requested) == ("", False)


def test_a_compilation_that_an_engine_did_not_finish_does_not_go_on_in_the_next() -> None:
    rows = LogRows()
    first = wire.PresetCompiling(preset="tp", phase="lower", time=1.0)
    lost = wire.EngineLost(process=0, reason="killed", time=2.0)
    second = (
        started(time=100.0),
        msgspec.structs.replace(first, time=101.0),
        msgspec.structs.replace(first, time=102.0),
    )
    for event in (started(time=0.0), first, lost, *second):
        rows.add(event)
    assert [row.text for row in rows.rows if row.phases] == ["tp: lowering …", "tp: lowering 1.0 s, lowering …"]


def kept(*steps: int) -> wire.CheckpointsKept:
    about = {"time": 0.0, "preset": "dp", "devices": 8, "loss": 2.0, "bytes": 1000}
    return wire.CheckpointsKept(checkpoints=[CheckpointInfo(step=step, **about) for step in steps])


def test_training_continues_during_a_save_and_a_failed_one_keeps_earlier_checkpoints() -> None:
    state = after(steps(2, 3.0, 2.5), wire.CheckpointSaving(step=2, stall_seconds=0.01))
    assert (state.saving, state.newest, state.phase) == (2, None, Phase.TRAINING)
    apply_all(state, [wire.CheckpointSaved(step=2, bytes=9, arrays=52, seconds=1), kept(2)])
    assert (state.saving, state.newest and state.newest.step) == (None, 2)
    failed = wire.CheckpointFailed(step=3, problems=["the disk is full"])
    apply_all(state, [wire.CheckpointSaving(step=3, stall_seconds=0.01), failed])
    assert (state.saving, [info.step for info in state.checkpoints]) == (None, [2])
    damaged = wire.CheckpointDamaged(step=2, problems=["x: 0 bytes"], set_aside="2.damaged")
    apply_all(state, [damaged, kept()])
    assert state.newest is None
    assert "set aside as 2.damaged: x: 0 bytes" in damaged.line


def test_a_restored_checkpoint_drops_later_steps() -> None:
    paused = wire.Paused(step=5, problem="not finite")
    state = after(steps(3, 3.0, 2.5, 2.0), switched(step=3), steps(5, 1.0, None), paused)
    assert (state.paused_by, state.marks) == ("not finite", [(3, "tp")])
    apply(state, restored(2, 4))
    assert (state.step, list(state.losses), state.marks) == (2, [3.0, 2.5], [(2, "↺tp")])
    assert (state.paused_by, state.phase) == (None, Phase.PAUSED)
    apply_all(state, [wire.Resumed(step=2), steps(3, 2.25)])
    assert (state.step, list(state.losses), state.phase) == (3, [3.0, 2.5, 2.25], Phase.TRAINING)
    assert restored(2, 4).line.endswith("; set aside: 4")
    apply(state, wire.RestoreFailed(step=1, problems=["no such step"]))
    assert (state.step, state.phase) == (3, Phase.TRAINING)


def test_another_engine_resumes_from_the_checkpoint_or_starts_from_step_0() -> None:
    before: list[AnyEvent] = [steps(4, 3.0, 2.5, 2.0, 1.5), kept(2), wire.EngineStopped(step=4, reason="signalled")]
    state = after(*before, START[0])
    assert (state.phase, state.preset, state.compiled, state.is_over) == (Phase.STARTING, "", {}, False)
    apply_all(state, [*START[1:3], restored(2), wire.TrainingStarted(preset="tp", step=2)])
    assert (state.step, list(state.losses), state.preset, state.phase) == (2, [3.0, 2.5], "tp", Phase.TRAINING)
    assert [info.step for info in state.checkpoints] == [2]
    state = after(steps(2, 3.0, 2.5), switched(step=2), wire.EngineLost(reason="killed"), *START)
    assert (state.step, list(state.losses), state.marks, state.problems) == (0, [], [], [])


def test_step_times_hold_after_a_resume_on_the_same_devices_only() -> None:
    cpu, tpu = (
        msgspec.structs.replace(READY, devices=[DeviceInfo(number, kind, kind, 0) for number in range(8)])
        for kind in ("cpu", "TPU v5e")
    )
    state = after(cpu, *START[1:], steps(2, 3.0, 2.5, seconds=0.3), wire.EngineLost(reason="killed"), START[0], cpu)
    assert state.seconds_under("dp") == 0.3
    apply_all(state, [START[0], tpu])
    assert state.seconds_under("dp") is None


def test_events_applied_together_give_the_same_state_as_one_by_one() -> None:
    events = [steps(2, 4.0, None), steps(3, 3.0), wire.Paused(step=3), steps(4, 2.0, seconds=0.3), switched(step=4)]
    events += [steps(step, 1.0, seconds=step) for step in range(5, 100)]
    at_once = RunState()
    apply_all(at_once, [*START, *events])
    one_by_one = after(*events)
    assert [*map(str, at_once.losses)] == [*map(str, one_by_one.losses)] == ["4.0", "nan", "3.0", "2.0", *["1.0"] * 95]
    one_by_one.losses, one_by_one.wall_time = at_once.losses, at_once.wall_time  # the latter: test_goodput.py
    assert at_once == one_by_one


def test_watch_shows_the_bubble_of_a_pipeline_before_and_during_training() -> None:
    pipeline = PipelineInfo(axes=["pipeline"], stages=2, microbatches=4, bubble=0.2)
    ready = msgspec.structs.replace(READY, presets=[preset_info("dp", teaches="Cut.", pipeline=pipeline)])
    compiled = next(event for event in START if isinstance(event, wire.PresetCompiled))
    state = after(ready, msgspec.structs.replace(compiled, pipeline=pipeline), steps(1, 2.0))
    about = AboutPreset()
    about.preset = "dp"
    assert [line.plain for line in about.lines_for(state, 60)] == ["2 stages, 4 micro-batches, bubble 20 %. Cut."]
    assert [line.plain.split() for line in ThisStep().lines_for(state, 30)][-1] == ["bubble", "20", "%"]
    apply(state, compiled)
    assert all("bubble" not in line.plain for line in ThisStep().lines_for(state, 30))


def test_a_bar_has_a_cell_for_the_smallest_part_and_none_for_nothing() -> None:
    drawn = [bar("moments", 8, part, 1000, "", 27).plain for part in (1000, 1, 0)]
    assert [line.count("━") for line in drawn] == [10, 1, 0]
    assert {len(line) for line in drawn} == {27}


def test_figures_of_the_headline() -> None:
    ready = msgspec.structs.replace(READY, tokens_per_step=64)
    state = after(ready, steps(1, 2.0, seconds=0.1), steps(2, 1.0, seconds=0.0), steps(3, 1.0, seconds=0.1))
    loss, rate, step = headline(state)
    assert (loss.value, step.value, step.unit) == ("1.000", "100", "ms")
    assert len(rate.course) == 2, "a step of 0 s has no rate"
    small = steps(1, 4.065e-5, seconds=1.0, metrics={"grad_norm": [0.5]})
    state = after(started(config=tiny_config(steps=5000)), small)
    figures = [("loss", "4.1e-5"), ("grad norm", "0.500"), ("step", "1.0"), ("left", "1:23:19")]
    assert [(figure.name, figure.value) for figure in headline(state)] == figures
    assert "e" not in "".join(large_digits("4.1e-5")), "it is drawn as the others"
    apply(state, wire.EngineStopped(step=1, reason="stopped"))
    assert [(figure.name, figure.value) for figure in headline(state)] == figures[:-1], "no time is left"


def test_a_program_without_a_loss_has_none_in_words() -> None:
    none, wrong = steps(1, None, seconds=1.0), steps(1, None, seconds=1.0, nonfinite=["losses"])
    assert (none.line, wrong.line) == ("step 1: loss –", "step 1: loss not finite")
    shown = [[(figure.name, figure.value) for figure in headline(after(each))] for each in (none, wrong)]
    assert shown == [[("step", "1.0")], [("loss", "nan"), ("step", "1.0")]]


def test_a_small_headline_has_as_many_figures_as_fit() -> None:
    figures = [Figure("loss", "2.431", course=[3.0, 2.0]), Figure("tokens/s", "9,640", course=[1.0, 2.0])]
    assert small_line(figures, 80).plain == "loss 2.431 █▁   tokens/s 9,640 ▁█"
    assert small_line(figures, 30).plain == "loss 2.431   tokens/s 9,640"
    assert small_line(figures, 26).plain == small_line(figures, 3).plain == "loss 2.431"


def test_the_status_line_shows_that_a_trace_is_recorded_and_written() -> None:
    """Training pauses while the trace is written, which may take longer than the steps."""
    profiled = wire.Profiled(step=8, steps=5, directory="/tmp/profile", preset="dp")
    events = (wire.Profiling(step=3, steps=5), wire.ProfileWriting(step=8, steps=5, time=100.0), profiled)
    states = [after(*events[:number]) for number in range(4)]
    assert [status_line(state, 80, 112.0).plain.split("  ")[-1].strip() for state in states] == [
        "● training",
        "● tracing 5 steps",
        "● writing the trace 12 s",
        "● training",
    ]
    assert [state.is_quiet for state in states] == [True, False, False, True]
