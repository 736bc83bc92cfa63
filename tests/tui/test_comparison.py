"""A comparison takes events, and returns the commands to send."""

import pytest
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.commands import AnyCommand, SwitchPreset
from shardtui.engine.wire.events import AnyEvent
from shardtui.tui.state.comparison import WARM_UP_STEPS, Comparison, Stage, in_progress
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.run_state import RunState

from ..recorded import restored, steps, switched
from .test_run_state import START

STEPS = 4
SLOW = 9.0
"""Seconds of a step that must not be measured."""


class Run:
    """A run that obeys a comparison, as its events show it."""

    def __init__(self, *presets: str, active: str = "dp") -> None:
        self.state = RunState()
        for event in [*START, steps(1, 2.0)]:
            apply(self.state, event)
        self.comparison = Comparison(presets, active, STEPS)
        self.sent: list[AnyCommand] = []
        self.send(self.comparison.proceed())

    def send(self, command: AnyCommand | None) -> None:
        self.sent += [command] if command else []

    def happens(self, *events: AnyEvent) -> "Run":
        for event in events:
            apply(self.state, event)
            self.send(self.comparison.follow(event, self.state.preset, self.state.is_quiet))
        return self

    def switches(self, to: str) -> "Run":
        return self.happens(wire.PresetCompiling(preset=to), switched(from_preset=self.state.preset, to_preset=to))

    def steps(self, count: int, seconds: float = 0.1) -> "Run":
        return self.happens(steps(self.state.step + count, *[2.0] * count, seconds=seconds))

    def cancels(self) -> "Run":
        self.send(self.comparison.cancel())
        return self

    def seconds(self, preset: str) -> float | None:
        measured = self.comparison.measured(preset, 1000)
        return measured.step_seconds if measured else None


def to(*presets: str) -> list[AnyCommand]:
    return [SwitchPreset(preset) for preset in presets]


def test_each_preset_is_measured_after_a_switch_and_the_active_one_comes_last() -> None:
    run = Run("dp", "tp", "fsdp")
    assert run.sent == to("tp")
    assert in_progress(run.comparison) == "tp (1 of 3): switching"
    run.steps(5, SLOW).switches("tp").steps(WARM_UP_STEPS, SLOW).steps(2)
    assert in_progress(run.comparison) == "tp (1 of 3): 2 of 4 steps"
    run.steps(2, 0.3)
    assert run.sent == to("tp", "fsdp")
    run.steps(9, SLOW).switches("fsdp").steps(WARM_UP_STEPS + STEPS + 7, 0.2)
    assert run.sent == to("tp", "fsdp", "dp")
    run.switches("dp").steps(WARM_UP_STEPS).steps(STEPS, 0.4)
    assert (run.comparison.stage, run.comparison.ended_by) == (Stage.OVER, None)
    assert run.sent == to("tp", "fsdp", "dp"), "the run is under its original preset"
    assert [run.seconds(preset) for preset in ("dp", "tp", "fsdp")] == [0.4, 0.2, 0.2]
    measured = run.comparison.measured("tp", 1000)
    assert (measured.steps, measured.fastest_seconds, measured.slowest_seconds) == (STEPS, 0.1, 0.3)
    assert (measured.lower_quartile_seconds, measured.upper_quartile_seconds) == (0.1, 0.3)
    assert measured.tokens_per_second == 1000 / 0.2


def test_the_run_returns_to_a_preset_that_is_not_measured_and_needs_no_switch_for_its_own() -> None:
    run = Run("tp").switches("tp").steps(WARM_UP_STEPS + STEPS)
    assert (run.comparison.stage, run.sent) == (Stage.RETURNING, to("tp", "dp"))
    run.switches("dp")
    assert run.comparison.is_over
    run = Run("dp").steps(3, SLOW).steps(WARM_UP_STEPS, SLOW).steps(STEPS)
    assert (run.comparison.is_over, run.sent, run.seconds("dp")) == (True, [], 0.1)


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        (wire.PresetCompiling(preset="fsdp", ahead=True), wire.AheadEnded(preset="fsdp", problem=None)),
        (wire.CheckpointSaving(step=9, stall_seconds=0), wire.CheckpointSaved(step=9, bytes=1, arrays=1, seconds=1.0)),
        (wire.Paused(step=9), wire.Resumed(step=9)),
    ],
)
def test_steps_during_background_work_do_not_count(begun: AnyEvent, ended: AnyEvent) -> None:
    run = Run("tp").switches("tp").steps(WARM_UP_STEPS + 2).happens(begun).steps(8, SLOW).happens(ended)
    run.steps(5, SLOW)  # this report may include steps from before its end
    run.steps(WARM_UP_STEPS, SLOW)
    assert (run.comparison.done, run.comparison.is_over) == (2, False)
    assert run.steps(2).seconds("tp") == 0.1


def test_steps_after_a_restored_checkpoint_are_warmed_up_again() -> None:
    run = Run("tp").switches("tp").steps(WARM_UP_STEPS).happens(restored(1)).steps(1, SLOW)
    assert run.steps(WARM_UP_STEPS, SLOW).steps(STEPS).seconds("tp") == 0.1


def failed(preset: str, step: int = 1, trains: str = "dp") -> wire.SwitchFailed:
    return wire.SwitchFailed(to_preset=preset, step=step, problems=["does not fit"], preset=trains)


def test_a_failed_switch_is_a_problem_and_the_next_preset_follows() -> None:
    run = Run("dp", "tp", "fsdp").happens(wire.PresetCompiling(preset="tp"), failed("tp"))
    assert (run.sent, run.comparison.problems) == (to("tp", "fsdp"), {"tp": ["does not fit"]})
    run.switches("fsdp").steps(WARM_UP_STEPS + STEPS)
    assert run.sent == to("tp", "fsdp", "dp")
    # a failed first step, for example out of memory: the engine rolls the switch back
    run = Run("tp").happens(switched(from_preset="dp", to_preset="tp", step=7), failed("tp", 7))
    assert run.state.preset == "dp"
    assert (run.comparison.is_over, run.comparison.problems, run.sent) == (True, {"tp": ["does not fit"]}, to("tp"))


def test_a_comparison_can_be_cancelled_in_every_stage() -> None:
    pending = Run("tp").happens(wire.PresetCompiling(preset="tp")).cancels()
    assert pending.sent == to("tp", "dp"), "it replaces the pending switch"
    assert pending.happens(wire.SwitchCancelled(to_preset="tp")).comparison.is_over
    measuring = Run("tp", "dp").switches("tp").steps(WARM_UP_STEPS + 1).cancels()
    assert (measuring.sent, measuring.comparison.stage) == (to("tp", "dp"), Stage.RETURNING)
    assert measuring.switches("dp").comparison.is_over
    assert (measuring.seconds("tp"), measuring.comparison.ended_by) == (0.1, "cancelled"), "measured figures are kept"
    under_origin = Run("dp").steps(1).cancels()
    assert (under_origin.sent, under_origin.comparison.is_over) == ([], True)
    assert under_origin.cancels().sent == []
    # the engine completed the switch before the cancellation arrived
    late = Run("tp").cancels().happens(switched(from_preset="dp", to_preset="tp"))
    assert late.comparison.stage is Stage.RETURNING
    assert late.switches("dp").comparison.is_over
    assert Run("tp").cancels().happens(failed("tp", trains="dp")).comparison.is_over


def test_another_viewers_switch_ends_the_comparison() -> None:
    run = Run("tp", "fsdp").switches("tp").steps(WARM_UP_STEPS + 1).switches("hsdp")
    assert (run.comparison.is_over, run.sent) == (True, to("tp")), "the run keeps the preset that the viewer chose"
    assert run.comparison.ended_by == "a viewer switched the run to hsdp"
    cancelled = Run("tp").happens(wire.SwitchCancelled(to_preset="tp"))
    assert cancelled.comparison.ended_by == "a viewer cancelled the switch to tp"
    no_return = Run("tp").switches("tp").steps(WARM_UP_STEPS + STEPS).happens(failed("dp", trains="tp"))
    assert no_return.comparison.ended_by == "cannot return to dp: does not fit"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (wire.EngineStopped(step=9, reason="finished"), "the run ended after step 9"),
        (wire.EngineLost(reason="killed"), "killed"),
        (START[0], "another engine resumed the run"),
    ],
)
def test_the_end_of_the_engine_ends_the_comparison(event: AnyEvent, why: str) -> None:
    run = Run("tp", "fsdp").switches("tp").steps(WARM_UP_STEPS + STEPS).switches("fsdp").steps(5).happens(event)
    assert (run.comparison.is_over, run.comparison.ended_by, run.comparison.current) == (True, why, "fsdp")
    assert (run.seconds("tp"), run.sent) == (0.1, to("tp", "fsdp"))
    assert run.steps(9).cancels().sent == to("tp", "fsdp"), "it sends nothing more"


def test_memory_is_recorded_for_its_preset() -> None:
    """Memory is reported when it changes, at the latest after the steps that end a measurement."""
    at_first, under_tp, under_dp = (
        wire.MemoryMeasured(
            source="live arrays", bytes_in_use=count, peak_bytes=None, limit_bytes=None, bytes_by_device={}
        )
        for count in (100, 10, 99)
    )
    run = Run("tp", "fsdp", "dp").happens(at_first).switches("tp").steps(WARM_UP_STEPS + STEPS).happens(under_tp)
    run.switches("fsdp").steps(WARM_UP_STEPS + STEPS).switches("dp").steps(WARM_UP_STEPS + STEPS).happens(under_dp)
    found = [run.comparison.measured(preset, 1) for preset in ("tp", "fsdp", "dp")]
    assert [measured and measured.bytes_in_use for measured in found] == [10, 10, 99]
