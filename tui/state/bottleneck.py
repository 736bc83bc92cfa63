"""What costs most in a step besides computing, and what to try."""

from collections.abc import Sequence

from ...engine.base import formatting
from ...engine.wire.step_breakdown import CollectiveTime, FlowTime, StepBreakdown
from .alternative import Alternative

LEAST_SHARE = 0.05
"""Fraction of the step below which nothing is worth trying."""
MOSTLY = 2.0
"""A device that others wait for this many times as long as for the mean device is named."""
BY_AXIS = {
    "model": "a smaller model axis sends less",
    "fsdp": "a larger batch hides it behind more work, and hsdp gathers among fewer devices",
    "data": "a larger batch spreads it over more work",
    "seq": "split only sequences that do not fit otherwise",
    "expert": "fewer, larger groups of experts exchange less",
    "pipeline": "more micro-batches shorten the bubble: microbatches in the preset's file",
}
"""Advice for collectives over an axis, as in docs/slow-step.md."""


def flow_times(breakdown: StepBreakdown) -> list[FlowTime]:
    """Sums collectives by kind and axes, those that cost most time first."""
    groups: dict[tuple[str, tuple[str, ...]], list[CollectiveTime]] = {}
    for each in breakdown.collectives:
        groups.setdefault((each.kind, tuple(each.axes)), []).append(each)
    found = [_flow(kind, axes, same) for (kind, axes), same in groups.items()]
    return sorted(found, key=lambda flow: -(flow.waiting_seconds + flow.exposed_seconds))


def _flow(kind: str, axes: tuple[str, ...], same: Sequence[CollectiveTime]) -> FlowTime:
    known = [each.bytes for each in same if each.bytes is not None]
    return FlowTime(
        kind=kind,
        axes=list(axes),
        count=sum(each.count for each in same),
        seconds=sum(each.seconds for each in same),
        waiting_seconds=sum(each.waiting_seconds for each in same),
        exposed_seconds=sum(each.exposed_seconds for each in same),
        hidden_seconds=sum(each.hidden_seconds for each in same),
        bytes=sum(known) if len(known) == len(same) else None,
    )


def share_of(breakdown: StepBreakdown, *names: str) -> float:
    return sum(part.share for part in breakdown.parts if part.name in names)


def suggestion(breakdown: StepBreakdown, alternative: Alternative | None = None) -> str:
    """Returns what costs most besides computing, and what to try: of a collective, `alternative` if there is one."""
    flows = flow_times(breakdown)
    cost = {name: share_of(breakdown, name) for name in ("copies", "input", "host", "idle")}
    if flows:
        cost["collective"] = (flows[0].waiting_seconds + flows[0].exposed_seconds) / breakdown.step_seconds
    worst = max(cost, key=lambda name: cost[name])
    share = formatting.percent(cost[worst])
    if cost[worst] < LEAST_SHARE:
        work = formatting.percent(share_of(breakdown, "matrix products", "other fusions", "copies"))
        return f"{work} of the step is work on the devices: another layout gains little."
    match worst:
        case "copies":
            return f"{share} of the step copies: look at the source lines of the largest, and at what is offloaded."
        case "input":
            return f"{share} of the step waits for batches: make the `batch` function faster, with NumPy and less work."
        case "host":
            return f"{share} of the step passes between steps, on the host: a larger batch makes it matter less."
        case "idle":
            return f"{share} of the step a device has nothing to run: larger operations, by a larger batch, leave less."
        case _:
            return _about_flow(breakdown, flows[0], share, alternative)


def _about_flow(breakdown: StepBreakdown, flow: FlowTime, share: str, alternative: Alternative | None) -> str:
    name = f"{flow.kind} over {formatting.over(flow.axes)}" if flow.axes else flow.kind
    waits = flow.waiting_seconds > flow.exposed_seconds
    mean = sum(wait.seconds for wait in breakdown.waits) / max(1, len(breakdown.devices))
    slow = breakdown.waits[0] if breakdown.waits and breakdown.waits[0].seconds > MOSTLY * mean else None
    if waits and slow:
        return (
            f"{share} of the step goes to {name}, mostly waiting for device {slow.device}: look at what it does more."
        )
    how = "mostly waiting for others to begin it" if waits else "not hidden behind work"
    if alternative:
        return f"{share} of the step goes to {name}, {how}: {alternative.preset} {alternative.reason}."
    remedy = next((BY_AXIS[axis] for axis in flow.axes if axis in BY_AXIS), "compare with a preset that has less of it")
    return f"{share} of the step goes to {name}, {how}: {remedy}."
