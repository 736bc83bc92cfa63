"""The time of a step that was not run yet, from its work and the rates of its devices. Does not import jax."""

from collections.abc import Sequence

from ..wire.rates import KindOfWork, Rate, Rates, StepPrediction

COLLECTIVES = "collectives"
"""The rate of kinds of collectives that were not measured: that of all collectives together."""
NO_COLLECTIVES = ("matrix products", "other fusions", "copies")


def predict(work: Sequence[KindOfWork], rates: Rates) -> StepPrediction | None:
    """Returns the time of a step with this work; None if some of it was never measured, or there is none."""
    seconds = predicted_seconds(work, {rate.kind: rate for rate in rates.rates})
    if not work or seconds is None:
        return None
    seconds += rates.other_seconds
    error = None if rates.error is None else rates.error * seconds
    return StepPrediction(seconds=seconds, error_seconds=error, accounts=rates.accounts)


def predicted_seconds(work: Sequence[KindOfWork], rates: dict[str, Rate]) -> float | None:
    """Returns the seconds of the work alone; None if there is no rate for some of it."""
    total = 0.0
    for each in work:
        rate = rates.get(each.kind) or (None if each.kind in NO_COLLECTIVES else rates.get(COLLECTIVES))
        if rate is None:
            return None
        total += each.count * rate.seconds_each + each.amount * rate.seconds_per_unit
    return total
