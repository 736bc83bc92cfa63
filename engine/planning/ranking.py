"""Presets side by side and ranked: what each would hold, move and take, by formula, by the compiler, and measured."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ..analysis.traffic import Flow
from ..base import figures
from ..spec.pipeline_info import PipelineInfo
from ..spec.topology import Topology, Wiring, wiring

Verdict = Literal["fits", "too large", "not known", "infeasible"]
Bound = Literal["compute", "memory", "network"]


class Work(Struct, frozen=True, kw_only=True):
    """What one device has to do in a step, whatever the chip."""

    flops: float
    """What is computed again included."""
    memory_bytes: float
    """Read from or written to its memory."""
    model_flops: float
    """Of the whole slice, nothing twice: what `flop_utilisation` counts."""
    tokens: int
    """Of the whole slice."""


class Cost(Struct, frozen=True, kw_only=True):
    """One step on one device. Nothing here is measured: it comes from formulas, or from a compiled program."""

    argument_bytes: int
    """Of state and batch."""
    peak_bytes: int
    """A program that is too large has none: what the compiler says it would need."""
    capacity_bytes: int | None
    """None where nobody can tell."""
    parts: dict[str, int] = {}
    """What the peak is made of, in bytes, largest first; of a program also what is not there at the peak."""
    collectives: list[Flow] | None = None
    """None where there is no program."""
    compute_seconds: float | None = None
    """These and what follows from them: None where the chip is not known, or there is no program."""
    memory_seconds: float | None = None
    network_seconds: float | None = None
    step_seconds: float | None = None
    """The longest of the three: a roofline. They overlap where the compiler overlaps them well."""
    tokens_per_second: float | None = None
    """Of the whole slice."""
    flop_utilisation: float | None = None
    """The model's operations ÷ what the slice could do in the step."""

    @property
    def bound(self) -> Bound | None:
        parts: dict[Bound, float | None] = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "network": self.network_seconds,
        }
        known: dict[Bound, float] = {name: seconds for name, seconds in parts.items() if seconds is not None}
        return max(known, key=lambda name: known[name]) if known else None

    @property
    def bytes_sent(self) -> int | None:
        """By one device in a step, over all axes."""
        return None if self.collectives is None else sum(flow.bytes_sent for flow in self.collectives)

    @property
    def sent_by_axis(self) -> dict[str, int]:
        """`data`, or `data × model` of collectives over both: to the bytes a device sends in a step, most first."""
        found: dict[str, int] = {}
        for flow in self.collectives or ():
            axes = figures.over(flow.axes)
            found[axes] = found.get(axes, 0) + flow.bytes_sent
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes


class Measured(Struct, frozen=True, kw_only=True):
    """Steps on the devices at hand."""

    steps: int
    """Without those of the warm-up."""
    step_seconds: float
    """The median."""
    fastest_seconds: float
    slowest_seconds: float
    lower_quartile_seconds: float
    """Half of the steps took between this and the upper one: a busy machine makes outliers."""
    upper_quartile_seconds: float
    tokens_per_second: float
    bytes_in_use: int | None
    """On the fullest device."""


class Row(Struct, frozen=True, kw_only=True):
    """One preset."""

    preset: str
    mesh: dict[str, int]
    wiring: list[Wiring] = []
    pipeline: PipelineInfo | None = None
    problems: list[str] = []
    """Why it cannot be, or could not be estimated, compiled or run."""
    laid_out: bool = False
    """It can be, although there may be no cost yet."""
    no_estimate: str = ""
    """Why it has none, although it can be laid out."""
    estimate: Cost | None = None
    compiled: Cost | None = None
    measured: Measured | None = None

    @property
    def cost(self) -> Cost | None:
        """The better known one."""
        return self.compiled or self.estimate

    @property
    def verdict(self) -> Verdict:
        if self.cost is None:
            return "not known" if self.laid_out else "infeasible"
        return "fits" if self.cost.fits else "too large"

    @property
    def timed(self) -> Cost | None:
        """The better known cost that says how long a step takes: of a program that is too large the estimate."""
        return next((cost for cost in (self.compiled, self.estimate) if cost and cost.step_seconds), None)

    @property
    def step_seconds(self) -> float | None:
        """Measured; else predicted."""
        known = self.measured or self.timed
        return known.step_seconds if known else None


class Board(Struct, frozen=True, kw_only=True):
    model: str
    topology: str
    """A slice, or the number of devices at hand."""
    rows: list[Row]


def ranked(rows: Sequence[Row]) -> list[Row]:
    """What fits comes first, the soonest done before others, of those the one with less to move, then with less to
    hold; then what is too large, by how much; then what is not known, and what cannot be."""

    def rank(row: Row) -> tuple[float, ...]:
        cost = row.cost
        if cost is None:
            return (2,) if row.laid_out else (3,)
        if row.verdict == "fits":
            seconds = row.step_seconds
            return 0, seconds is None, seconds or 0.0, cost.network_seconds or cost.bytes_sent or 0.0, cost.peak_bytes
        return 1, cost.peak_bytes / (cost.capacity_bytes or 1)

    return sorted(rows, key=rank)


def timed(cost: Cost, work: Work, topology: Topology, mesh: Mapping[str, int]) -> Cost:
    """With the times of a step: a roofline of compute, memory and interconnect (Williams et al. 2009)."""
    chip = topology.chip
    compute, memory = work.flops / chip.flops, work.memory_bytes / chip.memory_rate
    network = network_seconds(cost.collectives or (), topology, mesh)
    step = max(compute, memory, network)
    return msgspec.structs.replace(
        cost,
        compute_seconds=compute,
        memory_seconds=memory,
        network_seconds=network,
        step_seconds=step,
        tokens_per_second=work.tokens / step,
        flop_utilisation=work.model_flops / (step * chip.flops * topology.devices),
    )


def network_seconds(collectives: Sequence[Flow], topology: Topology, mesh: Mapping[str, int]) -> float:
    """All of them one after the other, each at the rate of the links under its axes.

    On several dims of the torus the rates add up. Austin et al. 2025, "How to Scale Your Model", chapter 3.
    """
    return sum(flow.bytes_sent / wiring(topology, mesh, flow.axes).rate for flow in collectives if flow.bytes_sent)


def recommendation(rows: Sequence[Row], where: str) -> str:
    """The best row and why, in a sentence."""
    best, *others = [row for row in ranked(rows) if row.cost] or [None]
    if best is None or best.cost is None:
        if any(row.laid_out for row in rows):
            return f"what these need on {where} is known once the TPU compiler has compiled them"
        return f"none of these can be laid on {where}: the table says why; `plan --search` tries every mesh"
    cost = best.cost
    if best.verdict != "fits":
        over = cost.peak_bytes - (cost.capacity_bytes or 0)
        return (
            f"none fits on {where}: {best.preset} comes closest and lacks {figures.size(over)} a device: "
            "take more chips, a smaller batch, or remat=true if it is not"
        )
    room = f" of {figures.size(cost.capacity_bytes)}" if cost.capacity_bytes else ""
    held = f"{figures.size(cost.peak_bytes)}{room} a device"
    if best.step_seconds is None:
        return f"{best.preset}: it sends least, {figures.size(cost.bytes_sent or 0)} a device and step, in {held}"
    by = f", bound by {cost.bound}" if best.measured is None else ""
    ahead = _ahead(best.step_seconds, next((row for row in others if row and row.verdict == "fits"), None))
    return f"{best.preset}: {figures.seconds(best.step_seconds)} a step{by}{ahead}, in {held}"


def _ahead(seconds: float, after: Row | None) -> str:
    if after is None or after.step_seconds is None:
        return ""
    if after.step_seconds < 1.005 * seconds:
        return f", as long as {after.preset}, with less time on the network or less to hold"
    return f", {after.step_seconds / seconds:.2f} × as fast as {after.preset}"
