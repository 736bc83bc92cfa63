"""The cost of a step on one device: memory, traffic and time by a roofline, traced or of a compiled program."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from ..base import formatting
from ..spec.topology import Topology, Wiring, wiring
from ..wire.descriptions import PeakBuffer, PeakMemory
from ..wire.step_breakdown import StepBreakdown
from .traffic import Flow, overlapped_share

Bound = Literal["compute", "memory", "network"]
"""The longest part of the roofline, which limits the time of a step."""
Basis = Literal["traced", "compiled"]
"""Source of a cost: `traced` of the traced step, partitioned by Shardy's passes, with what the compiler makes of it;
`compiled` for a compiled program."""


class Work(Struct, frozen=True, kw_only=True):
    """Work of one device in a step, independent of the chip."""

    flops: float
    """FLOPs of one device per step, including recomputation."""
    memory_bytes: float
    """Bytes that one device reads from and writes to its memory per step."""
    model_flops: float
    """FLOPs of all devices per step, without recomputation or redundant work; the basis of `flop_utilisation`. 0 if
    unknown."""
    tokens: int
    """Tokens per step, of all devices; 0 if unknown."""


class StepCost(Struct, frozen=True, kw_only=True):
    """Cost of one step on one device, not measured but estimated or taken from a compiled program."""

    basis: Basis
    """Its source."""
    argument_bytes: int
    """Bytes of the state and the batch."""
    peak_bytes: int
    """Most bytes that a step holds at once; for a program that does not fit, what the compiler says it needs.
    An estimate of less than 500 MB may be half of what the compiler needs, or ten times as much."""
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
    """Tokens per second of all devices; null for a program of your own."""
    flop_utilisation: float | None = None
    """Model FLOPs utilization (MFU): the model's FLOPs ÷ the peak FLOPs of all devices in the time of the step;
    null for a program of your own."""
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
        found: Counter[str] = Counter()
        for flow in self.collectives or ():
            found[formatting.over(flow.axes, flow.network)] += flow.bytes_sent
        return dict(found.most_common())

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes


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
        tokens_per_second=work.tokens / step if work.tokens else None,
        flop_utilisation=work.model_flops / (step * chip.flops * topology.devices) if work.model_flops else None,
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
