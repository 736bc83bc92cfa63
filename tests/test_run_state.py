"""Events in, what a viewer knows out."""

import math

from shardtui.engine.protocol import (
    AnyEvent,
    CommandRefused,
    EngineLost,
    EngineStarted,
    EngineStopped,
    MeshInfo,
    Paused,
    PresetCompiled,
    PresetCompiling,
    Resumed,
    StepsDone,
    SwitchCancelled,
    Switched,
    SwitchFailed,
    Switching,
    TrainingStarted,
)
from shardtui.tui.log_lines import in_words
from shardtui.tui.run_state import Phase, RunState

from .conftest import tiny_config

START: list[AnyEvent] = [
    EngineStarted(protocol=1, pid=7, config=tiny_config()),
    PresetCompiling(preset="dp"),
    PresetCompiled(
        preset="dp",
        compile_seconds=1.0,
        mesh=MeshInfo({"data": 8}, list(range(8))),
        arrays=[],
        collectives=[],
        memory=None,
    ),
    TrainingStarted(preset="dp"),
]


def steps(last: int, *losses: float | None, seconds: float = 0.1) -> StepsDone:
    return StepsDone(step=last, losses=list(losses), step_seconds=[seconds] * len(losses), input_wait_seconds=0.01)


def switched(**changes: object) -> Switched:
    values: dict[str, object] = {
        "from_preset": "dp",
        "to_preset": "tp",
        "step": 3,
        "arrays": 64,
        "bytes_moved": 1_500_000,
        "stall_seconds": 0.031,
        "compile_seconds": 2.0,
        "digests_equal": True,
        "loss_before": 2.0,
    }
    return Switched(**{**values, **changes})  # type: ignore[arg-type]


def after(*events: AnyEvent) -> RunState:
    state = RunState()
    for event in [*START, *events]:
        state.apply(event)
    return state


def phases(*events: AnyEvent) -> list[Phase]:
    return [after(*events[:n]).phase for n in range(len(events) + 1)]


def test_phases_of_a_start() -> None:
    state = RunState()
    seen = [state.phase]
    for event in START:
        state.apply(event)
        seen.append(state.phase)
    assert seen == [Phase.STARTING, Phase.STARTING, Phase.COMPILING, Phase.COMPILING, Phase.TRAINING]


def test_phases_of_a_switch_and_of_a_pause_across_it() -> None:
    assert phases(PresetCompiling(preset="tp"), Switching(to_preset="tp", step=3), switched()) == [
        Phase.TRAINING,
        Phase.TRAINING,
        Phase.SWITCHING,
        Phase.TRAINING,
    ]
    assert phases(Paused(step=3), Switching(to_preset="tp", step=3), switched(), Resumed(step=3)) == [
        Phase.TRAINING,
        Phase.PAUSED,
        Phase.SWITCHING,
        Phase.PAUSED,
        Phase.TRAINING,
    ]


def test_steps_are_kept_whole_and_timed_by_preset() -> None:
    state = after(steps(2, 3.0, 2.5), steps(3, None), switched(), steps(5, 2.0, 1.9, seconds=0.2))
    assert state.step == 5
    assert list(state.losses[:2]) == [3.0, 2.5]
    assert math.isnan(state.losses[2])
    assert state.step_seconds == {"dp": 0.1, "tp": 0.2}
    assert state.preset == "tp"
    assert [switch.step for switch in state.switches] == [3]
    assert state.input_wait == 0.01 / 0.4


def test_steps_beside_a_compilation_do_not_count_for_their_preset() -> None:
    state = after(steps(1, 2.0, seconds=0.1), PresetCompiling(preset="tp"), steps(4, 2.0, 2.0, 2.0, seconds=0.5))
    assert state.step_seconds == {"dp": 0.1}
    assert state.seconds_per_step == 0.5
    state.apply(SwitchCancelled(to_preset="tp"))
    state.apply(steps(5, 2.0, seconds=0.2))
    assert state.step_seconds == {"dp": 0.2} == {"dp": state.seconds_per_step}


def test_a_failed_or_cancelled_switch_changes_nothing() -> None:
    failed = SwitchFailed(to_preset="tp", step=3, problems=["out of memory"])
    state = after(PresetCompiling(preset="tp"), Switching(to_preset="tp", step=3), failed)
    assert (state.preset, state.phase, state.compiling, state.refused) == ("dp", Phase.TRAINING, None, failed)
    assert after(PresetCompiling(preset="tp"), SwitchCancelled(to_preset="tp")).compiling is None


def test_ends() -> None:
    assert after(EngineStopped(step=3, reason="stopped")).is_over
    lost = after(EngineLost(reason="killed"))
    assert (lost.phase, lost.problems) == (Phase.LOST, ["killed"])


def test_every_event_but_the_steps_is_logged_in_words() -> None:
    state = after(steps(1, 2.0), switched(), CommandRefused(problem="too long"))
    words = [in_words(event) for event in state.events]
    assert len(words) == len(START) + 2
    assert words[-2] == (
        "dp → tp after step 3: moved 1.5 MB, stalled 31 ms, compiled 2.0 s beside the steps, all 64 digests equal"
    )
    assert "DIGESTS DIFFER" in in_words(switched(digests_equal=False))
