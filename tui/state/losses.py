"""The losses of a run, of which any stretch has its mean at once: a chart of a million steps is a few hundred means."""

import math
from array import array
from collections.abc import Sequence
from typing import cast, overload

BLOCK = 64


class Losses(Sequence[float]):
    """Of step 1, 2, …; NaN where a loss was not finite."""

    def __init__(self, values: list[float] | list[float | None] | None = None) -> None:
        self._values = array("f")
        """As the step computes them."""
        self._sums = array("d")
        """Of each whole block."""
        self.extend(values or [])

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        return self._values[index]

    def extend(self, values: list[float] | list[float | None]) -> None:
        """None where a loss was not finite."""
        try:
            self._values.fromlist(cast(list[float], values))
        except TypeError:  # it has taken up nothing
            self._values.fromlist([math.nan if value is None else value for value in values])
        while len(self._values) >= (len(self._sums) + 1) * BLOCK:
            begin = len(self._sums) * BLOCK
            self._sums.append(sum(self._values[begin : begin + BLOCK]))

    def go_on_from(self, steps: int) -> None:
        """The next one is of step `steps` + 1: forgets those from there on; NaN for those that are missing before."""
        del self._values[steps:]
        del self._sums[steps // BLOCK :]
        if missing := steps - len(self):
            self.extend([math.nan] * missing)

    def mean(self, begin: int, end: int) -> float | None:
        """Of the finite ones of a stretch; None where there is none."""
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
