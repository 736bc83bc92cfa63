"""S109: axes that carry more bytes than compute can hide, by measured rates of the devices where there are any."""

from collections.abc import Iterator, Sequence

from ..base import figures
from ..wire.descriptions import CollectiveInfo
from ..wire.rates import KindOfWork
from .finding import Finding, Subject, finding
from .prediction import NO_COLLECTIVES, predicted_seconds
from .traffic import flows

FLOPS_PER_BYTE = 10.0
"""With fewer, compute cannot hide communication: chips compute 100 to 10,000 FLOP while a byte crosses a link."""
FIX = "give each device more to compute: a larger batch, longer sequences, or fewer devices on that axis"


def traffic_over_compute(subject: Subject) -> Iterator[Finding]:
    """Finds axes whose collectives take longer than everything else in a step, or that seem to without rates."""
    by_axes: dict[tuple[str, ...], list[CollectiveInfo]] = {}
    for info in subject.collectives:
        by_axes.setdefault(tuple(info.axes), []).append(info)
    others = [each for each in subject.work if each.kind in NO_COLLECTIVES]
    compute = _seconds(subject, others) if others else None
    for axes, own in by_axes.items():
        moved = sum(info.least_bytes for info in own)
        sent = [KindOfWork(flow.kind, flow.count or 0, flow.bytes_sent) for flow in flows(own)]
        communication = None if any(info.count is None for info in own) else _seconds(subject, sent)
        if compute is None or communication is None:
            why = _by_bytes(subject.flops_per_device, moved)
        else:
            why = _by_time(compute, communication)
        if why:
            message = f"{figures.over(axes)} carries {figures.size(moved)} per device and step {why}"
            yield finding("S109", message, FIX, cost=moved, axes=axes)


def _seconds(subject: Subject, work: Sequence[KindOfWork]) -> float | None:
    rates = subject.rates
    return None if rates is None else predicted_seconds(work, {rate.kind: rate for rate in rates.rates})


def _by_bytes(flops: float | None, moved: int) -> str | None:
    if flops is None or flops >= FLOPS_PER_BYTE * moved:
        return None
    return f"for {figures.rate(flops)}FLOP of compute: {flops / moved:.1f} FLOP per byte"


def _by_time(compute: float, communication: float) -> str | None:
    if communication <= compute:
        return None
    return (
        f"for {figures.seconds(compute)} of compute: its collectives take {figures.seconds(communication)}, by the "
        "rates of steps that were measured on such devices"
    )
