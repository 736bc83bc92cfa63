"""The losses of a run, with fast means of any range: a chart of a million steps is a few hundred means."""

import math
from array import array
from collections.abc import Sequence
from typing import cast, overload

BLOCK = 64
"""Losses in each sum that is kept."""


class Losses(Sequence[float]):
    """The losses of steps 1, 2, …; NaN if a loss was not finite."""

    def __init__(self) -> None:
        self._values = array("f")
        """float32, as the step computes them."""
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
        """Appends losses; None is a loss that was not finite."""
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
        """Makes the next loss that of step `steps` + 1: drops later losses, and fills missing ones with NaN."""
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
