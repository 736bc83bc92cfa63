"""Predicted step times where they are shown: Compare, the sentence of Time, Plan, the log."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from shardtui.engine.planning.at_hand import predicted_on
from shardtui.engine.planning.ranking import Cost, Row
from shardtui.engine.profiling import known_steps
from shardtui.engine.profiling.known_steps import KnownStep, KnownSteps, devices_of
from shardtui.engine.profiling.samples import MeasuredStep, Sample
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.events import RatesFitted
from shardtui.engine.wire.rates import KindOfWork, Rate, Rates, StepPrediction
from shardtui.tui.cli.compare_report import compared_preset
from shardtui.tui.state.alternative import alternative
from shardtui.tui.state.interpreter import apply
from shardtui.tui.state.log_lines import in_words
from shardtui.tui.state.measured_rows import cells, rows_of
from shardtui.tui.state.predicted_words import predicted_step, predicted_times
from shardtui.tui.state.run_state import RunState

from .test_time import recorded_state

WORK = [KindOfWork("copies", 1, 1e9)]


def rates(error: float | None = 0.07, seconds_per_byte: float = 1e-10) -> Rates:
    return Rates(
        device="cpu",
        devices=8,
        versions={},
        accounts=3,
        rates=[Rate(kind="copies", seconds_each=0.0, seconds_per_unit=seconds_per_byte)],
        other_seconds=0.0,
        error=error,
    )


def state_with(bytes_copied: Mapping[str, float], timed: Sequence[str]) -> RunState:
    """A run whose compiled presets copy that much; those that are `timed` have run, `fsdp` and `dp-tp2` 0.2 s."""
    state = recorded_state()
    state.compiled = {
        name: msgspec.structs.replace(compiled, work=[KindOfWork("copies", 1, bytes_copied[name])])
        for name, compiled in state.compiled.items()
        if name in bytes_copied
    }
    state.timed = {name: steps for name, steps in state.timed.items() if name in timed}
    apply(state, RatesFitted(rates=rates()))
    return state


def test_a_predicted_time_has_its_error_bar() -> None:
    assert predicted_step(StepPrediction(seconds=0.29, error_seconds=0.0203, accounts=3)) == "290 ms ± 7 %"
    assert predicted_step(StepPrediction(seconds=0.29, error_seconds=None, accounts=1)) == "≈ 290 ms"


def test_the_log_says_how_well_the_rates_predict() -> None:
    assert in_words(RatesFitted(rates=rates())) == (
        "step times are predicted from accounts of 3 programs on such devices: typically within 7 %"
    )
    assert "the error is not known yet" in in_words(RatesFitted(rates=rates(None)))


def test_compare_shows_the_prediction_of_compiled_presets_in_its_order() -> None:
    state = state_with({"dp": 3e9, "dp-tp2": 2e9, "fsdp": 1e9}, [])
    rows = rows_of(state, ["dp", "dp-tp2", "fsdp", "tp"])
    assert [row.preset for row in rows[:3]] == ["fsdp", "dp-tp2", "dp"]
    assert cells(rows[0])[2] == "100 ms ± 7 %"
    assert cells(rows[3])[2] == "", "tp is not compiled"
    found = compared_preset(rows[0]).predicted
    assert found == StepPrediction(seconds=pytest.approx(0.1), error_seconds=pytest.approx(0.007), accounts=3)


def test_the_preset_to_try_is_one_that_is_predicted_to_be_faster_than_the_error() -> None:
    state = state_with({"dp": 1e9, "dp-tp2": 2e9}, ["dp-tp2"])
    own = state.seconds_under("dp-tp2")
    assert own
    apply(state, RatesFitted(rates=rates(seconds_per_byte=own * 0.8e-9)))
    found = alternative(state, "dp-tp2")
    assert found and found.preset == "dp"
    assert found.reason.startswith("is predicted to take ") and "± 7 % a step, and this one took" in found.reason
    apply(state, RatesFitted(rates=rates(error=0.3, seconds_per_byte=own * 0.8e-9)))
    found = alternative(state, "dp-tp2")
    assert not (found and "predicted" in found.reason), "the error is larger than the gain"


def test_plan_shows_rates_of_devices_at_hand_and_the_schedule_of_the_compiler() -> None:
    predicted = StepPrediction(seconds=0.29, error_seconds=0.0203, accounts=3)
    cost = Cost(
        argument_bytes=1, peak_bytes=2, capacity_bytes=None, predicted=predicted, scheduled_seconds=0.2, work=WORK
    )
    words = predicted_times(Row(preset="dp", mesh={"data": 8}, compiled=cost))
    assert words == (
        "predicted 290 ms ± 7 % by rates measured on such devices; "
        "predicted 200 ms by the compiler's schedule and its estimates"
    )
    assert predicted_times(Row(preset="dp", mesh={"data": 8})) == ""


def test_a_slice_like_the_one_at_hand_has_a_prediction_and_others_have_none() -> None:
    from shardtui.engine.base.versions import versions

    sample = Sample("copies", 1, 1e9, 0.3)
    step = KnownStep(MeasuredStep("a", 0.3, 0.0, [sample]), WORK)
    known_steps.store(KnownSteps(devices_of("TPU v5p", 8, "tpu", versions()), [step]))
    cost = Cost(argument_bytes=1, peak_bytes=2, capacity_bytes=None, work=WORK)
    found = predicted_on(load_topology("v5p:2x2x2"), cost)
    assert found and found.seconds == pytest.approx(0.3)
    assert predicted_on(load_topology("v5p:4x4x4"), cost) is None
    assert predicted_on(load_topology("v5e:2x4"), cost) is None
