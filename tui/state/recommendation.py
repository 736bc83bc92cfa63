"""Which preset to choose, in one sentence."""

from collections.abc import Sequence

from ...engine.base import figures
from ...engine.planning.ranking import Row, ranked
from ...engine.spec.search import Goal
from .search_words import choice


def recommendation(rows: Sequence[Row], where: str, goal: Goal | None = None) -> str:
    """Returns the best row and why it is the best, in one sentence. `where`: the devices or the slice. `goal`: of the
    search for these rows."""
    if goal is not None:
        return choice(rows, goal, where)
    best, *others = [row for row in ranked(rows) if row.cost] or [None]
    if best is None or best.cost is None:
        if any(row.laid_out for row in rows):
            return f"the memory these need on {where} is known once the TPU compiler has compiled them"
        return f"none of these fit on {where}: see the table for the reasons; `plan --search` tries every mesh"
    cost = best.cost
    if best.verdict != "fits":
        over = cost.peak_bytes - (cost.capacity_bytes or 0)
        return (
            f"none fits on {where}: {best.preset} comes closest, {figures.size(over)} per device too large: "
            "use more chips, a smaller batch, or --set remat=true"
        )
    room = f" of {figures.size(cost.capacity_bytes)}" if cost.capacity_bytes else ""
    memory = f"{figures.size(cost.peak_bytes)}{room} per device"
    if best.step_seconds is None:
        return f"{best.preset}: sends least, {figures.size(cost.bytes_sent or 0)} per device and step; {memory}"
    bound_by = f", bound by {cost.bound}" if best.measured is None else ""
    ahead = _advantage(best.step_seconds, next((row for row in others if row and row.verdict == "fits"), None))
    return f"{best.preset}: {figures.seconds(best.step_seconds)} per step{bound_by}{ahead}; {memory}"


def _advantage(seconds: float, after: Row | None) -> str:
    if after is None or after.step_seconds is None:
        return ""
    if after.step_seconds < 1.005 * seconds:
        return f", as fast as {after.preset} with less network time or memory"
    return f", {after.step_seconds / seconds:.2f} × as fast as {after.preset}"
