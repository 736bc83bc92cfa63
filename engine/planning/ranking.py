"""Compares presets by memory, traffic and step time: estimated, compiled and measured."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from ..base import formatting
from ..hlo.finding import Finding
from ..hlo.traffic import Flow, overlapped_share
from ..spec.preset import Indivisible, PipelineInfo
from ..spec.topology import Topology, Wiring, wiring
from ..wire.descriptions import PeakBuffer, PeakMemory
from ..wire.step_breakdown import StepBreakdown

Verdict = Literal["fits", "too large", "not known", "infeasible"]
"""Whether a preset fits the devices; `not known` if there is no cost yet, `infeasible` if it cannot be laid out."""
Bound = Literal["compute", "memory", "network"]
"""The longest part of the roofline, which limits the time of a step."""


Basis = Literal["traced", "compiled"]
"""Source of a cost: `traced` of the traced step, partitioned by Shardy's passes, with what the compiler makes of it;
`compiled` for a compiled program."""

LEAST_TRUSTED = 500_000_000
"""Bytes: padding and small temporaries are a large part of smaller peaks (measured: -49 to +71 %)."""

Choice = bool | int | str
"""A setting that a search chose, such as `remat` or `batch_size`."""


class Work(Struct, frozen=True, kw_only=True):
    """Work of one device in a step, independent of the chip."""

    flops: float
    """FLOPs of one device per step, including recomputation."""
    memory_bytes: float
    """Bytes that one device reads from and writes to its memory per step."""
    model_flops: float
    """FLOPs of all devices per step, without recomputation or redundant work; the basis of `flop_utilisation`."""
    tokens: int
    """Tokens per step, of all devices."""


class StepCost(Struct, frozen=True, kw_only=True):
    """Cost of one step on one device, not measured but estimated or taken from a compiled program."""

    basis: Basis
    """Its source."""
    argument_bytes: int
    """Bytes of the state and the batch."""
    peak_bytes: int
    """Most bytes that a step holds at once; for a program that does not fit, what the compiler says it needs.
    An estimate of less than 500 MB may be half of what the compiler needs, or twice as much."""
    capacity_bytes: int | None
    """Bytes available to a program on one device; null if unknown."""
    parts: dict[str, int] = {}
    """Bytes by kind of data, largest first; for a compiled program also what is not live at the peak."""
    collectives: list[Flow] | None = None
    """Collectives summed by kind and mesh axes; null if there is no program, or its text cannot be read."""
    bytes_sent: int | None = None
    """Bytes of `collectives`: what the device sends to its neighbors on rings per step, without collectives whose count
    depends on data."""
    overlapped_share: float | None = None
    """Share of `bytes_sent`, 0 to 1, that is sent while the device computes; null if traced, or if nothing is sent."""
    compute_seconds: float | None = None
    """Time of the FLOPs at the chip's peak rate. This and the next five are null if the chip is unknown, or there is no
    program."""
    memory_seconds: float | None = None
    """Time of the bytes read and written at the chip's memory bandwidth."""
    network_seconds: float | None = None
    """Time of the bytes sent at the bandwidth of the links."""
    step_seconds: float | None = None
    """The longest of the three, a roofline: it assumes that the compiler overlaps them fully."""
    tokens_per_second: float | None = None
    """Tokens per second of all devices."""
    flop_utilisation: float | None = None
    """Model FLOPs utilization (MFU): the model's FLOPs ÷ the peak FLOPs of all devices in the time of the step."""
    scheduled_seconds: float | None = None
    """Time of a step by the TPU compiler's schedule: operations take the cycles that it estimates, and collectives that
    do not pass behind work their bytes by the rate of their links. Null if traced."""
    at_peak: PeakMemory | None = None
    """The peak of the memory, rebuilt from the order of the compiled program, or of the partitioned one from a trace;
    null for a program that is too large, and if its text cannot be read."""
    peak_buffers: list[PeakBuffer] = []
    """The memory at that peak: the 20 largest buffers, the largest first; empty if `at_peak` is null."""
    breakdown: StepBreakdown | None = None
    """Where the time of a step goes by the compiler's schedule and estimates; null unless `plan --profile` asks for
    it, if traced, and for a program that is too large."""

    def __post_init__(self) -> None:
        flows = self.collectives
        force_setattr(self, "bytes_sent", None if flows is None else sum(flow.bytes_sent for flow in flows))
        force_setattr(self, "overlapped_share", overlapped_share(flows or ()))

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
    def sent_by_axis(self) -> dict[str, int]:
        """Bytes that a device sends per step by axes, such as `data`, `data × model` or `data on DCN`, most first."""
        found: dict[str, int] = {}
        for flow in self.collectives or ():
            axes = formatting.over(flow.axes, flow.network)
            found[axes] = found.get(axes, 0) + flow.bytes_sent
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes


class Measured(Struct, frozen=True, kw_only=True):
    """Steps measured on the available devices."""

    steps: int
    """Number of measured steps, without the warm-up."""
    step_seconds: float
    """Median time of a step."""
    fastest_seconds: float
    """Time of the fastest step."""
    slowest_seconds: float
    """Time of the slowest step."""
    lower_quartile_seconds: float
    """Half of the steps took between this and `upper_quartile_seconds`; outliers do not affect it."""
    upper_quartile_seconds: float
    """See `lower_quartile_seconds`."""
    tokens_per_second: float
    """Tokens per step ÷ `step_seconds`; examples instead of tokens if your own function makes the batches."""
    bytes_in_use: int | None
    """Bytes in use on the fullest device; null if not measured."""


class Row(Struct, frozen=True, kw_only=True):
    """A preset with its settings, and its costs."""

    preset: str
    """Name of the preset."""
    mesh: dict[str, int]
    """Size by mesh axis, in order; empty if the mesh does not fill the devices."""
    verdict: Verdict = "not known"
    """Whether it fits, by `compiled`, else by `estimate`; `not known` if there is neither."""
    settings: dict[str, Choice] = {}
    """Settings of `--set` that a search chose."""
    tokens: int = 0
    """Tokens per step; 0 if it cannot be laid out."""
    wiring: list[Wiring] = []
    """The links that each mesh axis uses."""
    pipeline: PipelineInfo | None = None
    """Stages of its pipeline; null if it has none."""
    problems: list[str] = []
    """Why it is invalid, or could not be estimated, compiled or run."""
    indivisible: list[Indivisible] = []
    """Dims that are not divisible by their mesh axes, if there is no other problem."""
    laid_out: bool = False
    """Whether its layout is valid; there may be no cost yet."""
    findings: list[Finding] = []
    """Likely mistakes in how its mesh lies over the slices."""
    no_estimate: str = ""
    """Why there is no estimate although the layout is valid; else empty."""
    estimate: StepCost | None = None
    """Traced cost."""
    compiled: StepCost | None = None
    """Cost of the compiled program."""
    measured: Measured | None = None
    """Measured steps."""

    def __post_init__(self) -> None:
        known: Verdict = "not known" if self.laid_out else "infeasible"
        if self.cost is not None:
            known = "fits" if self.cost.fits else "too large"
        force_setattr(self, "verdict", known)

    @property
    def title(self) -> str:
        """Its name and its settings: `fsdp8 batch_size=64 remat=true`."""
        return title_of(self.preset, self.settings)

    @property
    def is_small(self) -> bool:
        """Whether its peak is an estimate that is too small to be trusted."""
        return self.compiled is None and self.estimate is not None and self.estimate.peak_bytes < LEAST_TRUSTED

    @property
    def cost(self) -> StepCost | None:
        """The more accurate cost: compiled, else estimated; None if there is neither."""
        return self.compiled or self.estimate

    @property
    def timed(self) -> StepCost | None:
        """The more accurate cost with a step time: the estimate for a program that does not fit. None if unknown."""
        return next((cost for cost in (self.compiled, self.estimate) if cost and cost.step_seconds), None)

    @property
    def step_seconds(self) -> float | None:
        """Measured time of a step, else predicted; None if unknown."""
        known = self.measured or self.timed
        return known.step_seconds if known else None


class Board(Struct, frozen=True, kw_only=True):
    """Presets to compare, for one model on one set of devices."""

    model: str
    """Name of the model."""
    topology: str
    """A slice such as `v5p:4x4x4`, or the number of available devices."""
    rows: list[Row]
    """One row per preset; of a search the best candidates."""
    estimated: int = 0
    """Candidates that a search estimated."""


def title_of(preset: str, settings: Mapping[str, Choice]) -> str:
    return " ".join([preset, *settings_of(settings)])


def settings_of(chosen: Mapping[str, Choice]) -> list[str]:
    """Returns settings as `--set` takes them: `remat=true`."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in chosen.items()]


def timed(cost: StepCost, work: Work, topology: Topology, mesh: Mapping[str, int]) -> StepCost:
    """Returns the cost with step times: a roofline of compute, memory and interconnect (Williams et al. 2009)."""
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
    """Returns the seconds of all collectives in sequence, each at the bandwidth of its axes' links. Over several dims
    of the torus the bandwidths add up. Austin et al. 2025, "How to Scale Your Model", chapter 3."""
    return sum(_seconds(flow, wiring(topology, mesh, flow.axes)) for flow in collectives if flow.bytes_sent)


def _seconds(flow: Flow, wired: Wiring) -> float:
    if flow.network not in ("dcn", "network"):
        return flow.bytes_sent / wired.rate
    assert wired.dcn_rate, "its axes cross slices or hosts"
    if flow.network == "dcn":
        return flow.bytes_sent / wired.dcn_rate
    inside = wired.size // wired.slices  # as many GPUs share what crosses hosts, and NVLink carries it to them
    return flow.bytes_sent / inside / wired.dcn_rate + (flow.bytes_sent / wired.rate if inside > 1 else 0.0)
