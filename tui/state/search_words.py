"""What a search found, in words."""

from collections.abc import Sequence

from ...engine.base import figures
from ...engine.planning.goal import figure, pick
from ...engine.planning.ranking import Row
from ...engine.spec.search import Goal


def figure_words(value: float, goal: Goal) -> str:
    """Returns what a goal is measured by, with its unit."""
    match goal:
        case "tokens-per-second":
            return f"{figures.rate(value)} tokens/s".replace("  ", " ")
        case "fits-largest-batch":
            return f"{value:,.0f} tokens a batch"
        case "least-traffic":
            return f"{figures.size(value)} sent per token"


def choice(rows: Sequence[Row], goal: Goal, where: str) -> str:
    """Returns what a search chose and how good it is, or what comes closest, in one sentence."""
    best = pick(rows, goal)
    if best is None or best.cost is None:
        return _closest(rows, where)
    value, cost = figure(best, goal), best.cost
    assert value is not None
    by = "by the compiler" if cost.basis == "compiler" else f"by {cost.basis}, not compiled"
    if cost.basis == "compiler" and goal == "tokens-per-second" and cost.scheduled_seconds:
        by = "by the compiler's schedule"
    room = f" of {figures.size(cost.capacity_bytes)}" if cost.capacity_bytes else ""
    return f"{best.title}: {figure_words(value, goal)} {by}; {figures.size(cost.peak_bytes)}{room} per device"


def _closest(rows: Sequence[Row], where: str) -> str:
    known = [(row, row.cost) for row in rows if row.cost and row.cost.capacity_bytes]
    if not known:
        return f"no mesh of {where} can lay this model out: choose another slice, or another batch size"
    row, cost = min(known, key=lambda each: each[1].peak_bytes / (each[1].capacity_bytes or 1))
    over = cost.peak_bytes - (cost.capacity_bytes or 0)
    return (
        f"no candidate fits on {where}: {row.title} comes closest, {figures.size(cost.peak_bytes)} of "
        f"{figures.size(cost.capacity_bytes or 0)}, {figures.size(over)} too large: use more chips, or a smaller batch"
    )
