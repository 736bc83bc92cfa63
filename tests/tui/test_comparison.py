"""What a comparison asks of the engine, and what it takes for measured: events in, commands out."""

from shardtui.engine.wire.commands import AnyCommand, SwitchPreset
from shardtui.engine.wire.events import (
    AheadEnded,
    AnyEvent,
    CheckpointSaved,
    CheckpointSaving,
    EngineLost,
    EngineStopped,
    MemoryMeasured,
    Paused,
    PresetCompiling,
    Restored,
    Resumed,
    SwitchCancelled,
    SwitchFailed,
)
from shardtui.tui.state.comparison import WARM_UP, Comparison, Stage, in_progress
from shardtui.tui.state.run_state import RunState

from .test_run_state import START, steps, switched

STEPS = 4
SLOW = 9.0
"""Seconds of a step that must not count."""


class Run:
    """A run that a comparison leads, as its events have it."""

    def __init__(self, *presets: str, active: str = "dp") -> None:
        self.state = RunState()
        for event in [*START, steps(1, 2.0)]:
            self.state.apply(event)
        self.comparison = Comparison(presets, active, STEPS)
        self.asked: list[AnyCommand] = []
        self.note(self.comparison.begin())

    def note(self, command: AnyCommand | None) -> None:
        if command:
            self.asked.append(command)

    def happens(self, *events: AnyEvent) -> "Run":
        for event in events:
            self.state.apply(event)
            self.note(self.comparison.follow(event, self.state.preset, self.state.is_quiet))
        return self

    def switches(self, to: str) -> "Run":
        return self.happens(PresetCompiling(preset=to), switched(from_preset=self.state.preset, to_preset=to))

    def steps(self, count: int, seconds: float = 0.1) -> "Run":
        return self.happens(steps(self.state.step + count, *[2.0] * count, seconds=seconds))

    def cancels(self) -> "Run":
        self.note(self.comparison.cancel())
        return self

    def seconds(self, preset: str) -> float | None:
        measured = self.comparison.measured(preset, 1000)
        return measured.step_seconds if measured else None


def to(*presets: str) -> list[AnyCommand]:
    return [SwitchPreset(preset) for preset in presets]


def test_each_is_measured_after_a_switch_and_the_active_one_comes_last() -> None:
    run = Run("dp", "tp", "fsdp")
    assert run.asked == to("tp")
    assert in_progress(run.comparison) == "tp (1 of 3): switching"
    run.steps(5, SLOW).switches("tp").steps(WARM_UP, SLOW).steps(2)
    assert in_progress(run.comparison) == "tp (1 of 3): 2 of 4 steps"
    run.steps(2, 0.3)
    assert run.asked == to("tp", "fsdp")
    run.steps(9, SLOW).switches("fsdp").steps(WARM_UP + STEPS + 7, 0.2)
    assert run.asked == to("tp", "fsdp", "dp")
    run.switches("dp").steps(WARM_UP).steps(STEPS, 0.4)
    assert (run.comparison.stage, run.comparison.ended_by) == (Stage.OVER, None)
    assert run.asked == to("tp", "fsdp", "dp"), "it is where it came from"
    assert [run.seconds(preset) for preset in ("dp", "tp", "fsdp")] == [0.4, 0.2, 0.2]
    measured = run.comparison.measured("tp", 1000)
    assert measured
    assert (measured.steps, measured.fastest_seconds, measured.slowest_seconds) == (STEPS, 0.1, 0.3)
    assert (measured.lower_quartile_seconds, measured.upper_quartile_seconds) == (0.1, 0.3)
    assert measured.tokens_per_second == 1000 / 0.2


def test_a_preset_that_is_not_measured_is_returned_to() -> None:
    run = Run("tp").switches("tp").steps(WARM_UP + STEPS)
    assert (run.comparison.stage, run.asked) == (Stage.RETURNING, to("tp", "dp"))
    run.switches("dp")
    assert run.comparison.is_over


def test_the_active_preset_alone_needs_no_switch() -> None:
    run = Run("dp").steps(3, SLOW).steps(WARM_UP, SLOW).steps(STEPS)
    assert (run.comparison.is_over, run.asked, run.seconds("dp")) == (True, [], 0.1)


def test_what_ran_beside_something_does_not_count() -> None:
    beside: list[tuple[AnyEvent, AnyEvent]] = [
        (PresetCompiling(preset="fsdp", ahead=True), AheadEnded(preset="fsdp", problem=None)),
        (CheckpointSaving(step=9, stall_seconds=0.1), CheckpointSaved(step=9, bytes=1, arrays=1, seconds=1.0)),
        (Paused(step=9), Resumed(step=9)),
    ]
    for begun, ended in beside:
        run = Run("tp").switches("tp").steps(WARM_UP + 2).happens(begun).steps(8, SLOW).happens(ended)
        run.steps(5, SLOW)  # a report that may hold steps from before its end
        run.steps(WARM_UP, SLOW)
        assert (run.comparison.done, run.comparison.is_over) == (2, False)
        run.steps(2)
        assert run.seconds("tp") == 0.1


def test_steps_of_an_earlier_state_are_a_new_warm_up() -> None:
    restored = Restored(
        step=1,
        from_preset="dp",
        from_devices=8,
        preset="tp",
        arrays=1,
        seconds=0.1,
        digests_equal=True,
        rolled_back=[],
    )
    run = Run("tp").switches("tp").steps(WARM_UP).happens(restored).steps(1, SLOW).steps(WARM_UP, SLOW).steps(STEPS)
    assert run.seconds("tp") == 0.1


def failed(preset: str, step: int = 1, trains: str = "") -> SwitchFailed:
    return SwitchFailed(to_preset=preset, step=step, problems=["does not fit"], preset=trains)


def test_a_switch_that_fails_is_a_problem_and_the_next_follows() -> None:
    run = Run("dp", "tp", "fsdp").happens(PresetCompiling(preset="tp"), failed("tp"))
    assert (run.asked, run.comparison.problems) == (to("tp", "fsdp"), {"tp": ["does not fit"]})
    run.switches("fsdp").steps(WARM_UP + STEPS)
    assert run.asked == to("tp", "fsdp", "dp")


def test_a_first_step_that_fails_is_one_too() -> None:
    """Out of memory, say: the engine takes the switch back."""
    run = Run("tp").happens(switched(from_preset="dp", to_preset="tp", step=7), failed("tp", 7, "dp"))
    assert run.state.preset == "dp"
    assert (run.comparison.is_over, run.comparison.problems, run.asked) == (True, {"tp": ["does not fit"]}, to("tp"))


def test_cancelled_wherever_it_is() -> None:
    pending = Run("tp").happens(PresetCompiling(preset="tp")).cancels()
    assert pending.asked == to("tp", "dp"), "the active preset takes back the switch"
    assert pending.happens(SwitchCancelled(to_preset="tp")).comparison.is_over
    measuring = Run("tp", "dp").switches("tp").steps(WARM_UP + 1).cancels()
    assert (measuring.asked, measuring.comparison.stage) == (to("tp", "dp"), Stage.RETURNING)
    assert measuring.switches("dp").comparison.is_over
    assert (measuring.seconds("tp"), measuring.comparison.ended_by) == (0.1, "cancelled"), "what was measured stays"
    at_home = Run("dp").steps(1).cancels()
    assert (at_home.asked, at_home.comparison.is_over) == ([], True)
    assert at_home.cancels().asked == []


def test_cancelled_while_the_switch_happens() -> None:
    """The engine had it done before it heard of that."""
    late = Run("tp").cancels().happens(switched(from_preset="dp", to_preset="tp"))
    assert late.comparison.stage is Stage.RETURNING
    assert late.switches("dp").comparison.is_over
    assert Run("tp").cancels().happens(failed("tp")).comparison.is_over


def test_the_switch_of_another_ends_it() -> None:
    run = Run("tp", "fsdp").switches("tp").steps(WARM_UP + 1).switches("hsdp")
    assert (run.comparison.is_over, run.asked) == (True, to("tp")), "the run stays where it was put"
    assert run.comparison.ended_by == "a viewer switched the run to hsdp"
    taken_back = Run("tp").happens(SwitchCancelled(to_preset="tp"))
    assert taken_back.comparison.ended_by == "a viewer took back the switch to tp"
    no_way_back = Run("tp").switches("tp").steps(WARM_UP + STEPS).happens(failed("dp"))
    assert no_way_back.comparison.ended_by == "no way back to dp: does not fit"


def test_the_end_of_the_engine_ends_it() -> None:
    ends: list[tuple[AnyEvent, str]] = [
        (EngineStopped(step=9, reason="finished"), "the run ended after step 9"),
        (EngineLost(reason="killed"), "killed"),
        (START[0], "another engine took up the run"),
    ]
    for event, why in ends:
        run = Run("tp", "fsdp").switches("tp").steps(WARM_UP + STEPS).switches("fsdp").steps(5).happens(event)
        assert (run.comparison.is_over, run.comparison.ended_by) == (True, why)
        assert run.comparison.current == "fsdp"
        assert (run.seconds("tp"), run.asked) == (0.1, to("tp", "fsdp"))
        assert run.steps(9).cancels().asked == to("tp", "fsdp"), "it asks for nothing more"


def test_memory_is_that_of_the_preset() -> None:
    """It is told when it changes, at the latest after the steps that end a measurement."""

    def memory(count: int) -> MemoryMeasured:
        return MemoryMeasured(source="live arrays", bytes_in_use=count, peak_bytes=None, limit_bytes=None)

    run = Run("tp", "fsdp", "dp").happens(memory(100)).switches("tp").steps(WARM_UP + STEPS).happens(memory(10))
    run.switches("fsdp").steps(WARM_UP + STEPS).switches("dp").steps(WARM_UP + STEPS).happens(memory(99))
    found = [run.comparison.measured(preset, 1) for preset in ("tp", "fsdp", "dp")]
    assert [measured and measured.bytes_in_use for measured in found] == [10, 10, 99]
