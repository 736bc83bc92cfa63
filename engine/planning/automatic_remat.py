"""`remat = "auto"`: the least recomputation whose memory fits the devices."""

from collections.abc import Iterable

from ..models.task import Task
from ..spec.model_config import POLICIES
from ..spec.preset import Preset
from .estimate import Step

MARGIN = 0.05
"""Share of a device's memory that stays free."""


def usable(capacities: Iterable[int | None]) -> int | None:
    """Returns the bytes per device that a step may need, of the smallest device; None if that is unknown."""
    known = [capacity for capacity in capacities if capacity is not None]
    return int(min(known) * (1 - MARGIN)) if known else None


def fitting_remats(task: Task, devices: int, capacity: int | None, preset: Preset) -> list[bool | str]:
    """Returns the remat policies that fit `capacity` bytes by estimate, those that recompute least first; last, `full`.
    Raises UserError if the preset cannot be laid out."""
    if capacity is None:
        return ["full"]
    found: list[tuple[float, int, bool | str]] = []
    for remat in (False, *POLICIES):
        step = Step(task.with_config(task.config.with_remat(remat)), preset, devices)
        peak = sum(step.parts.values())
        if not step.unknown and peak <= capacity:
            found.append((step.work.flops, peak, remat))
    return [*(remat for *_, remat in sorted(found, key=lambda each: each[:2])), "full"]
