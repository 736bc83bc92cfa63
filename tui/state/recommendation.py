"""Which preset and settings to choose, in one sentence."""

from collections.abc import Sequence

from ...engine.base import formatting
from ...engine.hlo.step_cost import StepCost
from ...engine.planning.finalists import batch_limits
from ...engine.planning.goal import Goal, figure, pick, ranked
from ...engine.planning.ranking import Row, settings_of


def recommendation(rows: Sequence[Row], where: str, goal: Goal | None = None) -> str:
    """Returns the best row and why it is the best, in one sentence. `where`: the devices or the slice. `goal`: of the
    search for these rows."""
    if goal is not None:
        return "; ".join([_choice(rows, goal, where), *_batches(rows, goal)])
    best, *others = [row for row in ranked(rows) if row.cost] or [None]
    if best is None or best.cost is None:
        if any(row.laid_out for row in rows):
            return f"the memory these need on {where} is known once they are traced or compiled"
        return f"none of these fit on {where}: see the table for the reasons; `plan --search` tries every mesh"
    cost = best.cost
    if best.verdict != "fits":
        return f"{_closest(best.preset, cost, where)}: use more chips, a smaller batch, or --set remat=auto"
    memory = _memory(cost)
    if best.step_seconds is None:
        return f"{best.preset}: sends least, {formatting.size(cost.bytes_sent or 0)} per device and step; {memory}"
    bound_by = f", bound by {cost.bound}" if best.measured is None else ""
    ahead = _advantage(best.step_seconds, next((row for row in others if row and row.verdict == "fits"), None))
    return f"{best.preset}: {formatting.seconds(best.step_seconds)} per step{bound_by}{ahead}; {memory}"


def _advantage(seconds: float, after: Row | None) -> str:
    if after is None or after.step_seconds is None:
        return ""
    if after.step_seconds < 1.005 * seconds:
        return f", as fast as {after.preset} with less network time or memory"
    return f", {after.step_seconds / seconds:.2f} × as fast as {after.preset}"


def _batches(rows: Sequence[Row], goal: Goal) -> list[str]:
    """Returns the largest batch of each preset that is too large as asked, such as `fsdp fits with batch_size=24, not
    with 32`, and the best settings that keep the batch."""
    found: list[str] = []
    for preset, (largest, over) in batch_limits(rows).items():
        smallest = f"{preset}: no batch size that was compiled fits, the smallest of them {over:,}"
        found.append(smallest if largest is None else f"{preset} fits with batch_size={largest}, not with {over:,}")
        kept = pick([row for row in rows if row.preset == preset and "batch_size" not in row.settings], goal)
        found += [f"with the same batch as asked, {' '.join(settings_of(kept.settings))} fits"] if kept else []
    return found


def figure_words(value: float, goal: Goal) -> str:
    match goal:
        case "tokens-per-second":
            return f"{formatting.rate(value)} tokens/s".replace("  ", " ")
        case "fits-largest-batch":
            return f"{value:,.0f} tokens a batch"
        case "least-traffic":
            return f"{formatting.size(value)} sent per token"


def _choice(rows: Sequence[Row], goal: Goal, where: str) -> str:
    """Returns what a search chose and how good it is, or what comes closest, in one sentence."""
    best = pick(rows, goal)
    if best is None or best.cost is None:
        return _none_fits(rows, where)
    value, cost = figure(best, goal), best.cost
    assert value is not None
    by = "by the compiler" if cost.basis == "compiled" else f"{cost.basis}, not compiled"
    if cost.basis == "compiled" and goal == "tokens-per-second" and cost.scheduled_seconds:
        by = "by the compiler's schedule"
    return f"{best.title}: {figure_words(value, goal)} {by}; {_memory(cost)}"


def _none_fits(rows: Sequence[Row], where: str) -> str:
    known = [(row, row.cost) for row in rows if row.cost and row.cost.capacity_bytes]
    if not known:
        return f"no mesh of {where} can lay this model out: choose another slice, or another batch size"
    row, cost = min(known, key=lambda each: each[1].peak_bytes / (each[1].capacity_bytes or 1))
    return f"{_closest(row.title, cost, where)}: use more chips, or a smaller batch"


def _closest(title: str, cost: StepCost, where: str) -> str:
    over = formatting.size(cost.peak_bytes - (cost.capacity_bytes or 0))
    return f"none fits on {where}: {title} comes closest, {_memory(cost)}, {over} too large"


def _memory(cost: StepCost) -> str:
    room = f" of {formatting.size(cost.capacity_bytes)}" if cost.capacity_bytes else ""
    return f"{formatting.size(cost.peak_bytes)}{room} per device"
