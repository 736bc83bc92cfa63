"""The numbers inside arrays as a viewer keeps them: those measured last, and the course of each array."""

import math
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from ...engine.wire.number_events import STANDS_OUT, UPDATE, ArrayNumbers, NumbersMeasured

KEPT = 32
"""Measurements in the course of an array."""

Course = deque[tuple[int, float]]
"""Steps, and the root mean square of the whole array at each."""


class Numbers(Struct):
    """What a viewer knows of the numbers in a run's arrays."""

    newest: NumbersMeasured | None = None
    courses: dict[str, Course] = {}
    """By name of the array."""
    is_requested: bool = False
    """Whether the user has requested a measurement that is not there yet."""
    problem: str | None = None
    """Why the last attempt gave no numbers; None if it gave some."""

    def add(self, event: NumbersMeasured) -> None:
        """Adds a measurement. It replaces earlier ones of the same step and of later ones."""
        self.is_requested, self.problem = False, event.problem
        if event.problem:
            return
        self.rewind_to(event.step - 1)
        self.newest = event
        for array in event.arrays:
            self.courses.setdefault(array.name, deque(maxlen=KEPT)).append((event.step, whole(array.rms)))

    def rewind_to(self, step: int) -> None:
        """Drops what was measured after that step."""
        if self.newest and self.newest.step > step:
            self.newest = None
        for course in self.courses.values():
            while course and course[-1][0] > step:
                course.pop()


class NumbersRow(Struct, frozen=True):
    """The numbers of one array, as a table shows them."""

    array: ArrayNumbers
    update_ratios: Sequence[float | None] = ()
    """Root mean square of the update ÷ that of the parameter, like the lists of the array; empty if it has no update,
    None where the parameter is 0."""
    course: Sequence[float] = ()
    """Root mean square of the whole array in this measurement and some before it, the newest last."""

    @property
    def update_ratio(self) -> float | None:
        """The ratio of the whole array."""
        known = [ratio is not None for ratio in self.update_ratios]
        if not any(known):
            return None
        updates = [(ratio or 0.0) * size for ratio, size in zip(self.update_ratios, self.array.rms, strict=True)]
        return whole(updates) / whole(self.array.rms)


def rows_of(numbers: Numbers) -> list[NumbersRow]:
    """Returns a row for each array that was measured last; updates are figures of their parameter's row."""
    if numbers.newest is None:
        return []
    by_name = {array.name: array for array in numbers.newest.arrays}
    return [
        NumbersRow(
            array,
            update_ratios(array, by_name.get(UPDATE + array.name)),
            [rms for _, rms in numbers.courses.get(array.name, ())],
        )
        for array in numbers.newest.arrays
        if not array.name.startswith(UPDATE)
    ]


def update_ratios(array: ArrayNumbers, update: ArrayNumbers | None) -> list[float | None]:
    """Returns update ÷ parameter for each value of the lists; empty without an update of the same layers."""
    if update is None or len(update.rms) != len(array.rms):
        return []
    return [step / size if size else None for step, size in zip(update.rms, array.rms, strict=True)]


def whole(layers: Sequence[float]) -> float:
    """Returns the root mean square of an array from those of its layers, which are of equal size."""
    return math.sqrt(sum(value * value for value in layers) / len(layers)) if layers else 0.0


def outlier(values: Sequence[float]) -> int | None:
    """Returns where the value stands that is furthest from the median as a ratio; None if none stands out."""
    middle = median(values)
    if not middle:
        return None
    factors = [max(value / middle, middle / value) if value else math.inf for value in values]
    return factors.index(max(factors)) if max(factors) >= STANDS_OUT else None


def median(values: Sequence[float]) -> float:
    """Returns the lower median; 0 for none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0
