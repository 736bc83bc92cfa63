"""A figure that was measured, beside the one to reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from docs.tables import Cell

COLUMNS = {
    "figure": "",
    "value": "{:.3g}",
    "unit": "{}",
    "low": "{:.3g}",
    "high": "{:.3g}",
    "n": "{}",
    "sign": "{}",
    "bound": "{:g}",
    "against": "{}",
}


@dataclass(frozen=True)
class Figure:
    name: str
    values: Sequence[float]
    """One of each repeat."""
    unit: str
    """`×` of a ratio."""
    sign: str
    """≥ or ≤"""
    bound: float
    baseline: str
    """What it was measured against, with its own figure."""

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def is_met(self) -> bool:
        return self.value >= self.bound if self.sign == "≥" else self.value <= self.bound

    @property
    def target(self) -> str:
        return f"{self.sign} {self.bound:g}"

    @property
    def cells(self) -> list[Cell]:
        """Of `COLUMNS`."""
        spread = (min(self.values), max(self.values), len(self.values))
        return [self.name, self.value, self.unit, *spread, self.sign, self.bound, self.baseline]


def at_least(bound: float, name: str, values: Sequence[float], unit: str, baseline: str) -> Figure:
    return Figure(name, values, unit, "≥", bound, baseline)


def at_most(bound: float, name: str, values: Sequence[float], unit: str, baseline: str) -> Figure:
    return Figure(name, values, unit, "≤", bound, baseline)
