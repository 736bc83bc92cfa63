"""Which candidate of a search to compile next, and when to end: by estimates, corrected by what is compiled."""

from collections.abc import Callable, Sequence
from statistics import median

from msgspec.structs import replace

from ..spec.search import Goal
from .goal import gain, pick
from .ranking import Row, StepCost

SLACK: dict[Goal, float] = {"tokens-per-second": 2.0, "fits-largest-batch": 1.0, "least-traffic": 1.25}
"""A candidate is worth a compilation if it would be the best with an estimate that is so many times too low: step times
of small models are off by that much from mesh to mesh, bytes sent by less, and a batch is no estimate."""

MAX_OVERSIZE = 2.0
"""Presets that need more than this many times the capacity by formula are compiled only if they are named."""
Alike = Callable[[Row], object]
LIKENESS: tuple[Alike, ...] = (
    lambda row: (frozenset(row.mesh.items()), row.settings.get("remat")),
    lambda row: frozenset(row.mesh.items()),
    lambda row: (frozenset(row.mesh), row.settings.get("remat")),
    lambda row: frozenset(row.mesh),
    lambda row: None,
)
"""Rows with the same one of these have estimates that are off by similar factors, those with the first one by the most
similar ones."""


def next_to_compile(rows: Sequence[Row], goal: Goal) -> Row | None:
    """Returns the most promising row that is neither compiled nor failed; None if none can be better than the best.

    Each estimate is corrected by those compiled rows that are most like it. What has other axes than all compiled rows
    comes first: how far off its estimate is, is not known. While nothing fits, the row that comes closest is the most
    promising.
    """
    compiled, left = _parted(rows)
    fitting = [row for row in left if _peak_share(row, compiled) <= 1]
    best = pick(compiled, goal)
    if best is None:
        if fitting:
            return max(fitting, key=lambda row: _expected_gain(row, compiled, goal))
        return min(left, key=lambda row: _peak_share(row, compiled), default=None)
    gains = [(_expected_gain(row, compiled, goal), row) for row in fitting]
    worth = [(expected, row) for expected, row in gains if expected * SLACK[goal] > gain(best, goal)]
    known = {frozenset(row.mesh) for row in compiled}
    promise = max(worth, key=lambda each: (frozenset(each[1].mesh) not in known, each[0]), default=None)
    return promise[1] if promise else None


def is_far_too_large(cost: StepCost | None) -> bool:
    """Returns whether the peak exceeds `MAX_OVERSIZE` times the capacity of a device."""
    return bool(cost and cost.capacity_bytes and cost.peak_bytes > MAX_OVERSIZE * cost.capacity_bytes)


def expected_figure(rows: Sequence[Row], goal: Goal) -> float | None:
    """Returns the best figure that one of the rows that are not compiled is expected to reach; None without any."""
    compiled, left = _parted(rows)
    gains = [_expected_gain(row, compiled, goal) for row in left if _peak_share(row, compiled) <= 1]
    best = max(gains, default=0.0)
    return None if not best else 1 / best if goal == "least-traffic" else best


def _parted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Returns the compiled rows, and those with an estimate that are neither compiled nor failed."""
    left = [row for row in rows if row.estimate and not row.compiled and not row.problems]
    return [row for row in rows if row.compiled], left


def _expected_gain(row: Row, compiled: Sequence[Row], goal: Goal) -> float:
    known = [other for other in compiled if other.verdict == "fits" and _estimated_gain(other, goal)]
    return _estimated_gain(row, goal) * _correction(
        row, known, lambda other: gain(other, goal) / _estimated_gain(other, goal)
    )


def _estimated_gain(row: Row, goal: Goal) -> float:
    return gain(replace(row, compiled=None), goal)


def _peak_share(row: Row, compiled: Sequence[Row]) -> float:
    """The peak as a share of the capacity, 0 if that is unknown."""
    cost = row.estimate
    if cost is None or not cost.capacity_bytes:
        return 0.0
    share = cost.peak_bytes / cost.capacity_bytes
    known = [other for other in compiled if other.estimate and other.estimate.peak_bytes]
    return share * _correction(row, known, _peak_ratio)


def _peak_ratio(row: Row) -> float:
    assert row.compiled and row.estimate
    return row.compiled.peak_bytes / row.estimate.peak_bytes


def _correction(row: Row, known: Sequence[Row], ratio: Callable[[Row], float]) -> float:
    """The median ratio of the known rows that are most like this one; 1 if none is known."""
    for likeness in LIKENESS:
        if alike := [ratio(other) for other in known if likeness(other) == likeness(row)]:
            return median(alike)
    return 1.0
