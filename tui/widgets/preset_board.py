"""A board of presets: their table, what is said of all, and the details of the preset under the cursor."""

from collections.abc import Iterable, Iterator, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.hlo.step_cost import StepCost
from ...engine.planning.ranking import Measured, Row
from ..state import board_rows
from ..state.measured_rows import span
from ..state.step_words import overlap_words, pipeline_words
from ..terminal.plain_table import Column
from .lines import Lines, Paragraphs, set_titles, wrapped
from .table import Table


class PresetBoard(Vertical):
    """A table of presets, hints below it, and the details of the selected row."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hints, self.details = Table(has_full_text=False), Paragraphs(id="hints"), RowDetails()
        self.rows: dict[str, Row] = {}
        """By title, in the order of the view."""

    def compose(self) -> ComposeResult:
        yield self.table
        yield self.hints
        yield self.details

    def on_mount(self) -> None:
        set_titles(self.table.rows, "presets")
        set_titles(self.details, "preset")

    def show_rows(self, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> None:
        self.rows = {row.title: row for row in rows}
        self.table.show_columns(columns, self.rows)
        self.show_details()

    @property
    def selected_row(self) -> Row | None:
        return self.rows.get(self.table.selected or "")

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_details(self) -> None:
        self.details.show_row(self.selected_row)


LABEL_WIDTH = 15


class RowDetails(Lines):
    """Problems, measured times, memory, step time, pipeline, and the bytes sent over each mesh axis and its links."""

    def on_mount(self) -> None:
        self.row: Row | None = None

    def show_row(self, row: Row | None) -> None:
        self.row = row
        set_titles(self, row.title if row else "preset", formatting.axes(row.mesh) if row else "")
        self.draw()

    def draw(self) -> None:
        self.show(detail_lines(self.row, self.size.width) if self.row else [])


def detail_lines(row: Row, width: int) -> list[Content]:
    """Returns the details, problems first: a small panel cuts the last lines."""
    style = "$warning" if row.cost else "$error"
    problems = (*row.problems, *board_rows.findings(row), *board_rows.caveats(row))
    lines = wrapped(((text, style) for text in problems), width)
    texts = list(_texts(row))
    indent = max([LABEL_WIDTH, *(len(label) + 1 for label, _ in texts)])
    for label, text in texts:
        found = wrapped([(text, "")], width - indent) or [Content()]
        head = Content.styled(f"{label:<{indent}}", "$text-muted")
        lines += [Content.assemble(head if index == 0 else " " * indent, line) for index, line in enumerate(found)]
    return lines


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    if row.measured:
        yield "measured", _measured(row.measured, row.counted)
    if row.cost is None:
        return
    yield "memory", _memory(row, row.cost)
    if cost := row.timed:
        yield "step", _times(cost, row.counted)
    if words := board_rows.scheduled(row):
        yield "compiled", words
    if row.pipeline:
        yield "pipeline", pipeline_words(row.pipeline)
    moved = board_rows.sent(row)
    combined = [axes for axes in moved.sent_by_axis if axes not in row.mesh] if moved else []
    for axis, size in row.mesh.items():
        if size > 1:
            yield f"{axis} {size}", _axis(row, axis, moved, any(axis in axes.split() for axes in combined))
    for axes in combined:
        yield axes, _sent(row, axes, moved)
    if words := overlap_words(row.compiled.collectives or () if row.compiled else ()):
        yield "all sent", words
    for flow in moved.collectives or () if moved else ():
        times = f"{formatting.counted(flow.count, 'op')} over {formatting.over(flow.axes, flow.network)}"
        yield flow.kind, f"{times}, sends {formatting.in_step(flow.sent)}"


def _measured(measured: Measured, counted: str) -> str:
    middle_half = span(measured.lower_quartile_seconds, measured.upper_quartile_seconds)
    full_range = span(measured.fastest_seconds, measured.slowest_seconds)
    times = f"middle 50 % of {measured.steps} steps {middle_half}, all {full_range}"
    return f"{formatting.seconds(measured.step_seconds)}, {times}; {measured.tokens_per_second:,.0f} {counted}/s"


def _memory(row: Row, cost: StepCost) -> str:
    of = f" of {formatting.size(cost.capacity_bytes)}" if cost.capacity_bytes else ""
    verdict = "" if cost.fits else f", {board_rows.verdict(row)}"
    own = formatting.size(cost.argument_bytes)
    text = f"{formatting.size(cost.peak_bytes)}{of}{verdict}, of which state + batch {own}"
    errors = board_rows.errors(row)
    if errors is None or row.estimate is None:
        return f"{text}, {cost.basis}"
    estimated = f"{row.estimate.basis} {formatting.size(row.estimate.peak_bytes)}"
    return f"{text}; {estimated}, {board_rows.percent(errors.peak)}"


def _times(cost: StepCost, counted: str) -> str:
    parts = {"compute": cost.compute_seconds, "memory": cost.memory_seconds, "network": cost.network_seconds}
    known = (f"{name} {formatting.seconds(seconds)}" for name, seconds in parts.items() if seconds is not None)
    rate = f"{formatting.count(cost.tokens_per_second or 0)} {counted}/s"
    longest = f"{formatting.seconds(cost.step_seconds or 0)}, the maximum of {', '.join(known)}, if fully overlapped"
    return f"{longest}; {rate}, MFU {formatting.percent(cost.flop_utilisation or 0)}"


def _axis(row: Row, axis: str, moved: StepCost | None, is_combined: bool) -> str:
    """`is_combined`: whether something is sent over the axis together with others, which has a line of its own."""
    wired = next((wired for wired in row.wiring if wired.axes == [axis]), None)
    links = [board_rows.links_with_rates(wired)] if wired else []
    is_elsewhere = is_combined and moved and axis not in moved.sent_by_axis
    return "; ".join([*links, *([] if is_elsewhere else [_sent(row, axis, moved)])])


def _sent(row: Row, axes: str, moved: StepCost | None) -> str:
    text = f"sends {formatting.size(moved.sent_by_axis.get(axes, 0) if moved else 0)} per step"
    if moved is None or row.estimate is None or moved is row.estimate:
        return f"{text}, {moved.basis}" if moved else text
    own = [flow for flow in moved.collectives or () if formatting.over(flow.axes, flow.network) == axes]
    estimated = f"{row.estimate.basis} {formatting.size(row.estimate.sent_by_axis.get(axes, 0))}"
    return "; ".join(filter(None, (text, overlap_words(own), estimated)))
