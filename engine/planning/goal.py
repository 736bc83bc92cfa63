"""The request of a search, and which preset is better, also for its goal. Does not import jax."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..spec.config import RunConfig
from .ranking import Row, Settings, title_of

Goal = Literal["tokens-per-second", "fits-largest-batch", "least-traffic"]
"""Most tokens of all devices per second, most sequences in a step, or least bytes that a device sends per token."""
CHOSEN = ("batch_size", "remat", "accumulate_steps")
"""Settings that a search may choose."""


class SearchRequest(Struct, frozen=True, kw_only=True):
    goal: Goal = "tokens-per-second"
    kept: list[str] = []
    """Settings that keep their values, such as `batch_size`."""
    is_mesh_fixed: bool = False
    """Search only settings of the named presets: what makes them fit."""
    minutes: float = 10.0


class CurvePoint(Struct, frozen=True, kw_only=True):
    """A candidate that was better than all that were compiled before."""

    minutes: float
    """Minutes since the search began."""
    figure: float
    """Value of the goal."""
    preset: str
    """Name of its preset."""
    settings: Settings
    """Settings that the search chose, as `--set` takes them."""

    @property
    def title(self) -> str:
        return title_of(self.preset, self.settings)


def configured(config: RunConfig, settings: Settings) -> RunConfig:
    model = {key: value for key, value in settings.items() if key == "remat"}
    training = {key: value for key, value in settings.items() if key != "remat"}
    return replace(config, model=replace(config.model, **model), training=replace(config.training, **training))


def figure(row: Row, goal: Goal) -> float | None:
    """Returns the value of the goal; None if it is unknown. Tokens per second of a compiled program follow the
    compiler's schedule, if there is one."""
    if goal == "fits-largest-batch":
        return row.tokens or None
    if goal == "least-traffic":
        sent = row.cost and row.cost.bytes_sent
        return None if sent is None or not row.tokens else sent / row.tokens
    cost = row.timed
    if cost is None or cost.tokens_per_second is None:
        return None
    if cost.scheduled_seconds and cost.step_seconds:
        return cost.tokens_per_second * cost.step_seconds / cost.scheduled_seconds
    return cost.tokens_per_second


def point_of(best: Row, goal: Goal, seconds: float) -> CurvePoint:
    found = figure(best, goal)
    assert found is not None, "it is the best by it"
    return CurvePoint(minutes=seconds / 60, figure=found, preset=best.preset, settings=best.settings)


def gain(row: Row, goal: Goal) -> float:
    """Returns a number that is larger the better the row is, 0 if unknown."""
    found = figure(row, goal)
    if found is None:
        return 0.0
    if goal == "least-traffic":
        return 1 / found if found else math.inf
    return found


def rank(row: Row, goal: Goal | None = None) -> tuple[float, ...]:
    """Returns a key that is smaller the better the row is. What fits comes first, then what is too large, by how much,
    then rows without a cost, then infeasible ones. Of a search, what is compiled comes before estimates, and the goal
    decides; then, and without a goal, the step time, then traffic, then peak memory."""
    cost = row.cost
    if cost is None:
        return (3,) if row.laid_out else (4,)
    if row.verdict != "fits":
        return 2, cost.peak_bytes / (cost.capacity_bytes or 1)
    seconds = row.step_seconds
    first = (row.compiled is None, -gain(row, goal)) if goal else (0, seconds is None)
    return *first, seconds or 0.0, cost.network_seconds or cost.bytes_sent or 0.0, cost.peak_bytes


def ranked(rows: Iterable[Row], goal: Goal | None = None) -> list[Row]:
    """Returns the rows, best first: see `rank`."""
    return sorted(rows, key=lambda row: rank(row, goal))


def pick(rows: Sequence[Row], goal: Goal) -> Row | None:
    """Returns the best row that fits: of the compiled ones, or if none of them fits, by estimate. None if none fits."""
    return next((row for row in ranked(rows, goal) if row.verdict == "fits" and gain(row, goal)), None)
