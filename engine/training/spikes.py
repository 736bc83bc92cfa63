"""Values far above the course of a scalar, and which scalars rose before it."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from ..wire.events import Spiked

WATCHED = ("loss", "grad_norm")
"""Scalars whose spikes are reported."""
WINDOW, LEAST, RENEWED = 100, 20, 10
"""Steps whose median and deviation are usual, steps before which nothing is, and steps between their computations."""
SPIKE, RISE = 10.0, 5.0
"""Robust z-scores above which a value is a spike, and above which another scalar is said to have risen first."""
DEVIATIONS = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""
FLOOR = 0.01
"""Least deviation, as a fraction of the median: without noise every change would be a spike."""
TINY = 1e-30


@dataclass
class Course:
    """The last values of a scalar."""

    is_log: bool
    """Whether it is compared by its logarithm, as norms are, which are skewed: their values are positive."""
    values: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    """Values, or their logarithms."""
    median: float = 0.0
    deviation: float = math.inf
    """Robust standard deviation of `values`; infinite before there are enough."""
    rose_at: int | None = None
    """The step since which the value is above `RISE`; None while it is not."""
    is_spike: bool = False
    """Whether it has been above `SPIKE` since then."""

    def add(self, step: int, value: float) -> bool:
        """Adds the value of a step. Returns whether a spike begins with it."""
        if self.is_log:
            value = math.log(max(value, TINY))
        score = (value - self.median) / self.deviation
        was_spike = self.is_spike
        self.is_spike = score > SPIKE or (was_spike and score > RISE)
        self.rose_at = None if score <= RISE else step if self.rose_at is None else self.rose_at
        self.values.append(value)
        if len(self.values) >= LEAST and step % RENEWED == 0:
            self.median = median(self.values)
            spread = median(abs(each - self.median) for each in self.values)
            floor = FLOOR if self.is_log else FLOOR * abs(self.median)
            self.deviation = max(DEVIATIONS * spread, floor, TINY)
        return self.is_spike and not was_spike

    @property
    def usual(self) -> tuple[float, float]:
        """The median of the last values, and the value one deviation above it."""
        bounds = self.median, self.median + self.deviation
        return (math.exp(bounds[0]), math.exp(bounds[1])) if self.is_log else bounds


class Spikes:
    def __init__(self) -> None:
        self._courses: dict[str, Course] = {}

    def add(self, step: int, scalars: Mapping[str, float]) -> Spiked | None:
        """Adds the scalars of a step. Returns the spike that begins with it, if any."""
        began = [
            name for name, value in scalars.items() if math.isfinite(value) and self._course(name).add(step, value)
        ]
        for name in WATCHED:
            if name in began:
                return self._spiked(step, name, scalars[name])
        return None

    def _course(self, name: str) -> Course:
        return self._courses.setdefault(name, Course(is_log=name.endswith("_norm")))

    def _spiked(self, step: int, name: str, value: float) -> Spiked:
        course = self._courses[name]
        since = course.rose_at or step
        usual, above = course.usual
        others = {other: each.rose_at for other, each in self._courses.items() if each.rose_at and each.rose_at < since}
        return Spiked(step=step, name=name, value=value, usual=usual, deviation=above - usual, rose_before=others)
