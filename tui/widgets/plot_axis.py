"""The vertical axis of the loss chart: its bounds, and ticks with their labels."""

import math
from collections.abc import Sequence

from ...engine.base import formatting

LABEL_WIDTH = 7
"""Cells of the vertical axis with its labels."""
TICKS = (1, 2, 5)
"""Distances between ticks on a linear axis, times a power of ten."""
LOG_TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
"""Ticks on a log axis, times a power of ten."""


def scale(points: Sequence[tuple[int, float]], intervals: int) -> tuple[float, float, list[tuple[float, str]]]:
    """Returns the bounds, at round numbers, and about `intervals` + 1 ticks with their labels."""
    low, high = _bounds(points)
    power = 10 ** math.floor(math.log10((high - low) / intervals))
    step = next(tick * power for tick in (*TICKS, 10) if (high - low) / (tick * power) <= intervals)
    first, last = math.floor(low / step), math.ceil(high / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [n * step for n in range(first, last + 1)]
    texts = [f"{value:.{digits}f}" for value in values]
    if max(map(len, texts)) >= LABEL_WIDTH:
        texts = list(map(_short, values))
    return values[0], values[-1], list(zip(values, texts, strict=True))


def _short(value: float) -> str:
    """Returns a number with as many of three digits as fit into the vertical axis: `2.5e5`, `-2e-4`."""
    return next(text for digits in (3, 2, 1) if len(text := formatting.number(value, digits)) < LABEL_WIDTH)


def scaled(points: Sequence[tuple[int, float]], low: float, high: float) -> list[tuple[int, float]]:
    """Returns points whose values are mapped to the range of the chart."""
    if not points:
        return []
    least, greatest = _bounds(points)
    return [(x, low + (value - least) / (greatest - least) * (high - low)) for x, value in points]


def log_scale(points: Sequence[tuple[int, float]]) -> tuple[float, float, list[tuple[float, str]]]:
    low, high = _bounds(points)
    powers = range(math.floor(low) - 1, math.ceil(high) + 1)
    values = [tick * 10.0**power for power in powers for tick in LOG_TICKS]
    first = max(value for value in values if math.log10(value) <= low)
    last = min(value for value in values if math.log10(value) >= high)
    ticks = [(math.log10(value), _short(value)) for value in values if first <= value <= last]
    return math.log10(first), math.log10(last), ticks


def _bounds(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    least = max(abs(high) * 0.01, 1e-6)
    return (low, high) if high - low >= least else (low - least, high + least)
