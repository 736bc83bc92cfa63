"""Presets on a slice, ranked: what each would hold, move and take, by formula and by the compiler."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from . import figures
from .topology import Topology, Wiring, wiring
from .traffic import Flow

Verdict = Literal["fits", "too large", "infeasible"]
Bound = Literal["compute", "memory", "network"]
SENT_WHOLE = ("collective-permute", "collective-broadcast")


class Cost(Struct, frozen=True, kw_only=True):
    """One step on one device. Nothing here is measured: it comes from formulas, or from a compiled program."""

    argument_bytes: int
    """Of state and batch."""
    peak_bytes: int
    capacity_bytes: int
    collectives: list[Flow]
    compute_seconds: float
    memory_seconds: float
    network_seconds: float
    tokens_per_second: float
    """Of the whole slice."""
    flop_utilisation: float
    """The model's operations ÷ what the slice could do in the step."""

    @property
    def step_seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds, self.network_seconds)

    @property
    def bound(self) -> Bound:
        seconds: dict[Bound, float] = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "network": self.network_seconds,
        }
        return max(seconds, key=lambda name: seconds[name])


class Row(Struct, frozen=True, kw_only=True):
    """One preset."""

    preset: str
    mesh: dict[str, int]
    wiring: list[Wiring] = []
    problems: list[str] = []
    """Why it cannot be, or could not be compiled."""
    estimate: Cost | None = None
    compiled: Cost | None = None

    @property
    def cost(self) -> Cost | None:
        """The better known one."""
        return self.compiled or self.estimate

    @property
    def verdict(self) -> Verdict:
        if self.cost is None:
            return "infeasible"
        return "fits" if self.cost.peak_bytes <= self.cost.capacity_bytes else "too large"


class Board(Struct, frozen=True, kw_only=True):
    model: str
    topology: str
    rows: list[Row]


def ranked(rows: Sequence[Row]) -> list[Row]:
    """What fits comes first, the soonest done before others; then what is too large, by how much; then the rest."""

    def rank(row: Row) -> tuple[int, float]:
        if row.cost is None:
            return 2, 0.0
        if row.verdict == "fits":
            return 0, row.cost.step_seconds
        return 1, row.cost.peak_bytes / row.cost.capacity_bytes

    return sorted(rows, key=rank)


def network_seconds(collectives: Sequence[Flow], topology: Topology, mesh: Mapping[str, int]) -> float:
    """All of them one after the other, each at the rate of the links under its axes.

    On a ring of n devices a gather or a scatter of V bytes takes V (n − 1) / n ÷ rate, a reduction twice that, an
    exchange a quarter (no part goes further than half round); a permutation sends V. On several dims of the torus the
    rates add up. Austin et al. 2025, "How to Scale Your Model", chapter 3.
    """
    return math.fsum(_seconds(flow, wiring(topology, mesh, flow.axes)) for flow in collectives)


def _seconds(flow: Flow, wired: Wiring) -> float:
    if wired.size <= 1:
        return 0.0
    part = flow.bytes_known * (wired.size - 1) / wired.size
    factors = {"all-reduce": 2.0, "all-to-all": 0.25, "ragged-all-to-all": 0.25}
    sent = flow.bytes_known if flow.kind in SENT_WHOLE else part * factors.get(flow.kind, 1.0)
    return sent / wired.rate


def recommendation(rows: Sequence[Row], topology: Topology) -> str:
    """The best row and why, in a sentence."""
    best = ranked(rows)[0] if rows else None
    if best is None or best.cost is None:
        return f"no preset can be laid on {topology.name}"
    cost = best.cost
    if best.verdict != "fits":
        over = cost.peak_bytes - cost.capacity_bytes
        return (
            f"none fits on {topology.name}: {best.preset} comes closest and lacks {figures.size(over)} a device: "
            "take more chips, a smaller batch, or remat=true"
        )
    other = next((row.cost for row in ranked(rows)[1:] if row.cost and row.verdict == "fits"), None)
    ahead = f", {other.step_seconds / cost.step_seconds:.2g} × as fast as the next" if other else ""
    return (
        f"{best.preset}: {figures.seconds(cost.step_seconds)} a step, bound by {cost.bound}{ahead}, in "
        f"{figures.size(cost.peak_bytes)} of {figures.size(cost.capacity_bytes)} a device"
    )
