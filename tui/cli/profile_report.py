"""The JSON of `shardtui profile`, and tables of a step's time and memory."""

from collections.abc import Sequence

from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...engine.base import formatting
from ...engine.planning.ranking import Row
from ...engine.wire.descriptions import PeakBuffer, PeakMemory
from ...engine.wire.step_breakdown import FlowTime, StepBreakdown
from ..state import board_rows
from ..state.alternative import Alternative
from ..state.bottleneck import flow_times, suggestion
from ..state.step_words import coverage, curve_rows, moment
from ..state.tables import BUFFERS, by_source, operation_columns, share
from ..terminal.plain_table import plain_table, right, table_of

SCHEMA = 1
MAX_OPERATIONS = 15
"""Operations in the table, those with most time."""
MAX_DEVICES = 16
"""Devices in the table of waits."""


class ProfileReport(StepBreakdown, frozen=True, kw_only=True):
    """Where the time of a step went, measured by the profiler over whole steps."""

    schema: int = SCHEMA
    """Version of this schema; grows when a field changes its meaning or is removed."""


class PartChange(Struct, frozen=True, kw_only=True):
    """One part of the step on both sides, in seconds per step; 0 where a side does not have it."""

    name: str
    """Name of the part."""
    seconds: float
    """Seconds of the first."""
    other_seconds: float
    """Seconds of the other."""


class FlowTimeChange(Struct, frozen=True, kw_only=True):
    """Collectives of one kind over the same axes on both sides; null where a side has none."""

    kind: str
    """Kind of collective."""
    axes: list[str]
    """The mesh axes."""
    first: FlowTime | None
    """Those of the first."""
    other: FlowTime | None
    """Those of the other."""


class ProfileDiff(Struct, frozen=True, kw_only=True):
    """Two breakdowns side by side."""

    schema: int = SCHEMA
    """Version of this schema; grows when a field changes its meaning or is removed."""
    subject: str
    """The first run or trace."""
    other: str
    """The run or trace it is compared with."""
    step_seconds: float
    """Seconds per step of the first."""
    other_step_seconds: float
    """Seconds per step of the other."""
    parts: list[PartChange]
    """Every part that either has."""
    collectives: list[FlowTimeChange]
    """Every kind and axes that either has."""


def profile_diff(subject: str, breakdown: StepBreakdown, name: str, other: StepBreakdown) -> ProfileDiff:
    old, new = ({part.name: part.seconds for part in each.parts} for each in (breakdown, other))
    before, after = ({(flow.kind, tuple(flow.axes)): flow for flow in flow_times(each)} for each in (breakdown, other))
    return ProfileDiff(
        subject=subject,
        other=name,
        step_seconds=breakdown.step_seconds,
        other_step_seconds=other.step_seconds,
        parts=[
            PartChange(name=part, seconds=old.get(part, 0.0), other_seconds=new.get(part, 0.0))
            for part in dict.fromkeys((*old, *new))
        ],
        collectives=[
            FlowTimeChange(kind=key[0], axes=list(key[1]), first=before.get(key), other=after.get(key))
            for key in dict.fromkeys((*before, *after))
        ],
    )


def profile_tables(
    name: str, breakdown: StepBreakdown, width: int, alternative: Alternative | None = None
) -> list[RenderableType]:
    """Returns the breakdown as tables for a console of this width. `alternative`: the preset to try."""
    tables: list[RenderableType] = [Text(_title(name, breakdown), "bold"), _parts(breakdown)]
    if breakdown.collectives:
        tables.append(_collectives(breakdown))
    tables.append(
        table_of(operation_columns(breakdown), breakdown.operations[:MAX_OPERATIONS], width, title="operations")
    )
    if breakdown.waits:
        tables.append(_waits(breakdown))
    skipped = "without an estimate, left out" if breakdown.predicted_for else "skipped"
    tables += [Text(f"{skipped}: {', '.join(breakdown.skipped)}", "dim")] if breakdown.skipped else []
    return [*tables, Text(suggestion(breakdown, alternative))]


def _title(name: str, breakdown: StepBreakdown) -> str:
    mesh = f"{formatting.axes(breakdown.mesh)} on " if breakdown.mesh else ""
    if breakdown.predicted_for:
        step = formatting.seconds(breakdown.step_seconds)
        return (
            f"{name}: {breakdown.program}, {mesh}{breakdown.predicted_for}: a step of {step}, predicted, not measured"
        )
    steps = f"{formatting.counted(breakdown.steps, 'step')} of {formatting.seconds(breakdown.step_seconds)}"
    clock = f" (clock {formatting.seconds(breakdown.clock_seconds)})" if breakdown.clock_seconds else ""
    devices = formatting.counted(len(breakdown.devices), "device")
    return f"{name}: {breakdown.program}, {mesh}{devices}, {steps}{clock}"


def _parts(breakdown: StepBreakdown) -> Table:
    table = plain_table("part of the step", right("time"), right("share"), title="where the time goes, mean of devices")
    for part in breakdown.parts:
        if breakdown.predicted_for and not part.seconds:
            continue
        table.add_row(part.name, formatting.seconds(part.seconds), share(part.share))
    return table


def _collectives(breakdown: StepBreakdown) -> Table:
    columns = ("times", "waiting", "exposed", "hidden", "payload")
    table = plain_table("collectives", "over", *map(right, columns), title="communication per device and step")
    for flow in flow_times(breakdown):
        table.add_row(flow.kind, formatting.over(flow.axes), _times(flow.count), *_times_of(flow))
    return table


def _times_of(flow: FlowTime) -> list[str]:
    times = (flow.waiting_seconds, flow.exposed_seconds, flow.hidden_seconds)
    return [*map(formatting.seconds, times), formatting.in_step(flow.bytes)]


def _times(count: float) -> str:
    return f"{count:,.0f}" if count == round(count) else f"{count:,.1f}"


def _waits(breakdown: StepBreakdown) -> Table:
    table = plain_table(right("device"), right("others wait"), right("times"), title="devices that others wait for")
    for wait in breakdown.waits[:MAX_DEVICES]:
        table.add_row(str(wait.device), formatting.seconds(wait.seconds), _times(wait.count))
    return table


def diff_tables(diff: ProfileDiff) -> Sequence[RenderableType]:
    parts = plain_table("part of the step", right(diff.subject), right(diff.other), right("change"), title="per step")
    rows = [("step", diff.step_seconds, diff.other_step_seconds)]
    for name, one, other in (*rows, *((part.name, part.seconds, part.other_seconds) for part in diff.parts)):
        sign = "+" if other >= one else "−"
        parts.add_row(
            name, formatting.seconds(one), formatting.seconds(other), sign + formatting.seconds(abs(other - one))
        )
    columns = ("times", "waiting", "exposed", "hidden", "payload")
    moved = plain_table("collectives", "over", "", *map(right, columns), title="communication per device and step")
    for change in diff.collectives:
        for name, flow in ((diff.subject, change.first), (diff.other, change.other)):
            cells = [_times(flow.count), *_times_of(flow)] if flow else ["–"] * 5
            moved.add_row(change.kind, formatting.over(change.axes), Text(name), *cells)
    return [parts, moved]


CURVE_WIDTH = 60


def peak_table(name: str, peak: PeakMemory, buffers: Sequence[PeakBuffer], compiler: int | None) -> Table:
    """Returns the largest buffers at the peak of a step. `name`: the preset. `compiler`: its own figure of the peak;
    None if nothing is compiled."""
    lines = [f"over the step {line} up to {formatting.size(peak.bytes)}" for line in curve_rows(peak, CURVE_WIDTH, 1)]
    return table_of(
        BUFFERS,
        by_source(buffers),
        title=f"{name}: largest buffers at the peak, predicted: {moment(peak)}",
        caption="\n".join([*lines, coverage(peak, buffers, compiler)]),
    )


def peak_tables(rows: Sequence[Row]) -> list[Table]:
    """Of the compiled programs; of a row without one as traced, if it is."""
    costs = [(row.title, cost) for row in rows if (cost := board_rows.with_peak(row))]
    return [
        peak_table(name, at, cost.peak_buffers, cost.peak_bytes if cost.basis == "compiled" else None)
        for name, cost in costs
        if (at := cost.at_peak)
    ]
