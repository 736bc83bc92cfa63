"""The losses of a run, with fast means of any range (a chart of a million steps is a few hundred means), and the few
held-out losses."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import cast, overload

from msgspec import Struct

BLOCK = 64
"""Losses in each sum that is kept."""


class Losses(Sequence[float]):
    """The losses of steps 1, 2, …; NaN if a loss was not finite."""

    def __init__(self) -> None:
        self._values = array("f")
        self._sums = array("d")
        """Of each full block."""

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return self._values[index]

    def extend(self, values: list[float] | list[float | None]) -> None:
        try:
            self._values.fromlist(cast(list[float], values))
        except TypeError:  # nothing was appended
            self._values.fromlist([math.nan if value is None else value for value in values])
        self._sum_blocks()

    def _sum_blocks(self) -> None:
        while len(self._values) >= (len(self._sums) + 1) * BLOCK:
            begin = len(self._sums) * BLOCK
            self._sums.append(sum(self._values[begin : begin + BLOCK]))

    def rewind_to(self, steps: int) -> None:
        """Makes step `steps` + 1 the next loss: drops later losses, and fills missing ones with NaN."""
        del self._values[steps:]
        del self._sums[steps // BLOCK :]
        if missing := steps - len(self):
            self._values.extend(array("f", [math.nan]) * missing)
            self._sum_blocks()

    def mean(self, begin: int, end: int) -> float | None:
        """Returns the mean of the finite losses in `[begin, end)`; None if there are none."""
        total = self._sum(begin, end)
        if math.isfinite(total) and begin < end:
            return total / (end - begin)
        finite = [value for value in self._values[begin:end] if math.isfinite(value)]
        return sum(finite) / len(finite) if finite else None

    def _sum(self, begin: int, end: int) -> float:
        first, last = -(-begin // BLOCK), end // BLOCK
        if first >= last:
            return sum(self._values[begin:end])
        edges = sum(self._values[begin : first * BLOCK]) + sum(self._values[last * BLOCK : end])
        return edges + sum(self._sums[first:last])


class Evaluations(Struct):
    """Losses by the number of steps done; NaN if one was not finite."""

    _steps: list[int] = []
    _losses: list[float] = []

    def __len__(self) -> int:
        """Returns the step of the last evaluation: where its curve ends."""
        return self._steps[-1] if self._steps else 0

    def add(self, step: int, loss: float | None) -> None:
        self.rewind_to(step - 1)
        self._steps.append(step)
        self._losses.append(math.nan if loss is None else loss)

    def rewind_to(self, steps: int) -> None:
        kept = bisect_left(self._steps, steps + 1)
        del self._steps[kept:], self._losses[kept:]

    def mean(self, begin: int, end: int) -> float | None:
        """Returns the mean of the finite losses after steps `begin` + 1 to `end`; None if there are none."""
        found = self._losses[bisect_left(self._steps, begin + 1) : bisect_left(self._steps, end + 1)]
        finite = [loss for loss in found if math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else None

    def latest(self, steps: int) -> tuple[int, float] | None:
        """Returns the last evaluation after at most so many steps, and its loss; None if there is none."""
        found = bisect_left(self._steps, steps + 1) - 1
        return (self._steps[found], self._losses[found]) if found >= 0 else None

    @property
    def best(self) -> tuple[int, float] | None:
        """The evaluation of the lowest loss: its step and loss; None if no loss is finite."""
        found = [pair for pair in zip(self._steps, self._losses, strict=True) if math.isfinite(pair[1])]
        return min(found, key=lambda pair: pair[1], default=None)
