"""The held-out losses of a run: few, at steps that are far apart."""

import math
from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass
class Evaluations:
    """Losses by the number of steps done; NaN if one was not finite."""

    _steps: list[int] = field(default_factory=list[int])
    _losses: list[float] = field(default_factory=list[float])

    def __len__(self) -> int:
        """Returns the step of the last evaluation: where its curve ends."""
        return self._steps[-1] if self._steps else 0

    def add(self, step: int, loss: float | None) -> None:
        """Adds the loss after `step` steps."""
        self.rewind_to(step - 1)
        self._steps.append(step)
        self._losses.append(math.nan if loss is None else loss)

    def rewind_to(self, steps: int) -> None:
        """Drops evaluations of later steps."""
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
