"""Predicted step times in words, always with their error."""

from ...engine.base import figures
from ...engine.planning.ranking import Row
from ...engine.wire.rates import StepPrediction


def predicted_step(found: StepPrediction) -> str:
    """Returns a predicted time with its error bar, such as `290 ms ± 7 %`; without one if the error is not known."""
    seconds = figures.seconds(found.seconds)
    if found.error_seconds is None:
        return f"≈ {seconds}"
    return f"{seconds} ± {figures.percent(found.error_seconds / found.seconds)}"


def predicted_times(row: Row) -> str:
    """Returns what is predicted of the step of a compiled program besides the roofline; empty if nothing is."""
    found: list[str] = []
    if row.predicted:
        found.append(f"predicted {predicted_step(row.predicted)} by rates measured on such devices")
    if row.compiled and row.compiled.scheduled_seconds:
        seconds = figures.seconds(row.compiled.scheduled_seconds)
        found.append(f"predicted {seconds} by the compiler's schedule and its estimates")
    return "; ".join(found)
