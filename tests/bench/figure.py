"""A figure that was measured, beside the one to reach."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from docs.tables import Cell

COLUMNS = {"figure": "", "value": "{:.3g}", "unit": "{}", "low": "{:.3g}", "high": "{:.3g}", "n": "{}"}
COLUMNS |= {"sign": "{}", "bound": "{:g}", "against": "{}"}


@dataclass(frozen=True)
class Figure:
    name: str
    values: Sequence[float]
    unit: str
    """`×` of a ratio."""
    sign: str
    bound: float
    baseline: str
    """What it was measured against, with its own figure."""

    @property
    def cells(self) -> list[Cell]:
        spread = (min(self.values), max(self.values), len(self.values))
        return [self.name, median(self.values), self.unit, *spread, self.sign, self.bound, self.baseline]


def at_least(bound: float, name: str, values: Sequence[float], unit: str, baseline: str) -> Figure:
    return Figure(name, values, unit, "≥", bound, baseline)


def at_most(bound: float, name: str, values: Sequence[float], unit: str, baseline: str) -> Figure:
    return Figure(name, values, unit, "≤", bound, baseline)


def ratios(ours: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, plain, strict=True)]


def timed(function: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began
