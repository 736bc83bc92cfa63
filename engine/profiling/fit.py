"""Rates of devices, fitted to measured steps."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from ..analysis.prediction import COLLECTIVES, NO_COLLECTIVES, predicted_seconds
from ..wire.rates import KindOfWork, Rate
from .samples import MeasuredStep, Sample

ROUNDS = 10
"""Of reweighting: enough to settle."""


def fitted(steps: Sequence[MeasuredStep]) -> dict[str, Rate]:
    """Returns the rates by kind of work.

    An execution takes a latency plus its amount by a rate (Hockney 1994), so small products reach a smaller part of the
    peak than large ones.
    """
    kinds = {each.kind for step in steps for each in step.samples}
    kinds |= {COLLECTIVES} if kinds - {*NO_COLLECTIVES} else set()
    return {kind: _rate(kind, [found for step in steps if (found := _of(kind, step))]) for kind in sorted(kinds)}


def other_seconds(steps: Sequence[MeasuredStep]) -> float:
    """Returns the seconds of a step in which devices do no work: the median of the steps."""
    return median(step.other_seconds for step in steps)


def error(steps: Sequence[MeasuredStep], work: Mapping[str, Sequence[KindOfWork]]) -> float | None:
    """Returns the typical relative error of a prediction: that of each step, if the rates are fitted to the others.

    `work`: of each program. None for a single step.
    """
    found: list[float] = []
    for step in steps:
        others = [other for other in steps if other is not step]
        seconds = predicted_seconds(work[step.program], fitted(others)) if others else None
        if seconds is not None:
            found.append((seconds + other_seconds(others)) / step.seconds - 1)
    return fmean(each * each for each in found) ** 0.5 if found else None


def _of(kind: str, step: MeasuredStep) -> list[Sample]:
    """The samples of a kind of work; of all collectives for `COLLECTIVES`."""
    return [
        each for each in step.samples if kind == each.kind or (kind == COLLECTIVES and each.kind not in NO_COLLECTIVES)
    ]


def _rate(kind: str, steps: Sequence[Sequence[Sample]]) -> Rate:
    """The rates of one kind. `steps`: its samples in each step.

    Their ratio is that of the line that fits all samples, and their size such that a step's samples take together what
    was measured, in the median step: few times are much too long and none much too short, so the line alone is too low.
    """
    each, unit = _robust_line([sample for step in steps for sample in step])
    times = [sum(s.count * each + s.amount * unit for s in step) for step in steps]
    ratios = [sum(s.seconds for s in step) / time for step, time in zip(steps, times, strict=True) if time]
    by = median(ratios) if ratios else 1.0
    return Rate(kind=kind, seconds_each=by * each, seconds_per_unit=by * unit)


def _robust_line(samples: Sequence[Sample]) -> tuple[float, float]:
    """The line with the least sum of absolute deviations, by repeated weighting: a sum that outliers move little."""
    weights = [1.0 / max(each.seconds, 1e-12) for each in samples]
    each, unit = 0.0, 0.0
    for _ in range(ROUNDS):
        each, unit = _line(samples, weights)
        away = [abs(s.seconds - s.count * each - s.amount * unit) for s in samples]
        weights = [1.0 / max(gap, 0.01 * s.seconds, 1e-12) for gap, s in zip(away, samples, strict=True)]
    return each, unit


def _line(samples: Sequence[Sample], weights: Sequence[float]) -> tuple[float, float]:
    """Weighted least squares of seconds = count × latency + amount × unit, neither of which is negative."""
    pairs = list(zip(samples, weights, strict=True))
    nn = sum(w * s.count * s.count for s, w in pairs)
    na = sum(w * s.count * s.amount for s, w in pairs)
    aa = sum(w * s.amount * s.amount for s, w in pairs)
    nt = sum(w * s.count * s.seconds for s, w in pairs)
    at = sum(w * s.amount * s.seconds for s, w in pairs)
    determinant = nn * aa - na * na
    if determinant > 1e-9 * nn * aa:
        each, unit = (aa * nt - na * at) / determinant, (nn * at - na * nt) / determinant
        if each >= 0 and unit >= 0:
            return each, unit
        if unit < 0:
            return nt / nn, 0.0
    return (0.0, at / aa) if aa else (nt / nn, 0.0)
