"""Breakdowns of some of the devices, which processes send each other, and which add up to one of all."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from .timeline import DeviceSpans, Rank, Swept


class DeviceBreakdown(Struct, frozen=True):
    """The time of one device."""

    position: int
    """Its position in the mesh, in row-major order of the axes."""
    id: int
    """Its id."""
    parts: dict[str, float]
    """Seconds per step by part."""
    times_waited_for: float = 0.0
    """Collectives per step in which others waited for it."""
    waited_for: float = 0.0
    """Seconds per step that others waited for it, summed."""


class PartialBreakdown(Struct):
    """Sums over some devices. Seconds and counts are per step."""

    devices: list[DeviceBreakdown] = field(default_factory=list[DeviceBreakdown])
    """Each of the devices."""
    operations: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by operation; a collective's are exposed and waiting."""
    hidden: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of collectives behind work."""
    exposed: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of collectives after the wait, with no work."""
    waiting: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of collectives waiting for others."""
    counts: dict[str, float] = field(default_factory=dict[str, float])
    """Executions by operation."""
    skipped: list[str] = field(default_factory=list[str])
    """Unknown planes, lines and operations of the traces."""
    shown: list[DeviceSpans] = field(default_factory=list[DeviceSpans])
    """One step of some of the devices."""

    def mean(self, times: Mapping[str, float], name: str) -> float:
        """Returns the mean over the devices of one of the sums; 0 for an unknown name."""
        return times.get(name, 0.0) / len(self.devices)


def summed(swept: Iterable[Swept], scale: float) -> PartialBreakdown:
    """Returns the sums of the times of devices, without the devices. `scale`: seconds per step of a picosecond."""
    operations, hidden, exposed, waiting = (defaultdict[str, float](float) for _ in range(4))
    of_rank = {Rank.EXPOSED: exposed, Rank.WAITING: waiting}
    for device in swept:
        for (name, rank), time in device.counted.items():
            operations[name] += time * scale
            if rank in of_rank:
                of_rank[rank][name] += time * scale
        for name, time in device.hidden.items():
            hidden[name] += time * scale
    return PartialBreakdown(operations=operations, hidden=hidden, exposed=exposed, waiting=waiting)


def extremes(devices: Sequence[DeviceBreakdown], limit: int) -> set[int]:
    """Returns the positions of at most `limit` devices: the ones that others waited for longest and least."""
    ordered = [device.position for device in sorted(devices, key=lambda device: -device.waited_for)]
    return set(ordered if len(ordered) <= limit else [*ordered[: limit // 2], *ordered[-(limit // 2) :]])


def merged(found: Sequence[PartialBreakdown]) -> PartialBreakdown:
    """Returns the sums over all devices, in the order of their positions."""

    def total(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
        sums: Counter[str] = Counter()
        for times in each:
            sums.update(times)  # type: ignore[arg-type] # a Counter adds fractions, too
        return dict(sums)

    return PartialBreakdown(
        devices=sorted((device for sums in found for device in sums.devices), key=lambda device: device.position),
        operations=total([sums.operations for sums in found]),
        hidden=total([sums.hidden for sums in found]),
        exposed=total([sums.exposed for sums in found]),
        waiting=total([sums.waiting for sums in found]),
        counts=total([sums.counts for sums in found]),
        shown=sorted((device for sums in found for device in sums.shown), key=lambda device: device.position),
        skipped=list(dict.fromkeys(text for sums in found for text in sums.skipped)),
    )
