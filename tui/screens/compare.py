"""Compare: each preset as predicted, as compiled and as measured in this run, the best first."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.coordinate import Coordinate
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import figures
from ...engine.planning.ranking import Row
from ..messages import ComparisonAsked, ComparisonCancelled, PresetChosen
from ..state import board_rows
from ..state.availability import why_not
from ..state.comparison import Comparison, Stage, in_progress
from ..state.measured_rows import cells, devices, listed, rows_of, span, verdict
from ..state.run_state import Phase, RunState
from ..widgets.lines import Lines, entitle
from ..widgets.preset_list import sign
from ..widgets.rows import Rows
from .run_screen import RunScreen

NAMED = ("preset", "mesh")
WIDE = {
    counted: (*NAMED, "step time", "half within", f"{counted}/s", "in use", "arguments", "peak", "sent", "by formula")
    for counted in ("tokens", "examples")
}
NARROW = (*NAMED, "step", "in use", "peak", "sent", "formula")
NARROW_CELLS = (0, 3, 5, 6, 7)
"""Of `cells`, what has room on 80 columns."""


class Progress(Lines):
    """What is measured now, in one line that is drawn without the others."""


class Verdict(Lines):
    """The recommendation, and the row under the cursor in full."""


class CompareScreen(RunScreen):
    HELP = """\
## Compare

Each preset as compiled for these devices, and as measured in this run. **m** measures those that fit, but the pitfalls:
the run is switched to each in turn and trains on under it, so that no step is lost; times count once three steps are
done and nothing is compiled beside them. **Escape** cancels; in the end, too, the run returns to where it came from.
**Enter** goes on under the preset under the cursor.

*Step time* is the median, *half within* the quartiles. *In use* is measured, *arguments* and *peak* are the compiler's.
*Sent* is what one device sends in a step: of the compiled program, and by formula before there is one. A run that is
only watched has one layout, and nothing is measured in it.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [("m", "measure", "Measure"), ("escape", "cancel", "Cancel")]
    asks_estimates = True

    def body(self) -> Iterable[Widget]:
        yield Progress()
        self.table = Rows(cursor_type="row", zebra_stripes=True)
        yield self.table
        yield Verdict()

    def on_mount(self) -> None:
        self.rows: list[Row] = []
        self.shown: list[list[Text]] = []
        self.columns: Sequence[str] = ()
        self.offered: set[str] = {"measure"}
        """Of the keys, those that mean something now."""

    def on_resize(self) -> None:
        self.show_state(self.state)

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        self.rows = rows_of(state, listed(state))
        asks = state.ready and state.config and not state.estimates and state.is_heard
        title = f"presets on {devices(state.ready)}" if state.ready else "presets"
        entitle(self.table, title, "estimating by formula …" if asks else "per device and step")
        self.query_one(Progress).show([progress_line(state)])
        self.show_rows(NARROW if self.has_class("-narrow") else WIDE[state.counted])
        self.show_verdict()
        self.show_keys()

    def show_keys(self) -> None:
        """Which of them mean something now."""
        actions = {action for action in ("measure", "cancel") if self.check_action(action, ())}
        if actions != self.offered:
            self.offered = actions
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "cancel":
            return is_going_on(self.state.comparison)
        return not why_not(action, self.state) and not (action == "measure" and is_going_on(self.state.comparison))

    def show_rows(self, columns: Sequence[str]) -> None:
        """Draws the cells that changed; all of them where the order did."""
        rows = [row_cells(row, self.state, columns is NARROW) for row in self.rows]
        names = [row.preset for row in self.rows]
        if columns is self.columns and names == [key.value for key in self.table.rows]:
            for at, (old, new) in enumerate(zip(self.shown, rows, strict=True)):
                for column, (before, after) in enumerate(zip(old, new, strict=True)):
                    if before != after:
                        self.table.update_cell_at(Coordinate(at, column), after, update_width=True)
        else:
            self.fill(columns, names, rows)
        self.shown = rows

    def fill(self, columns: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        chosen = self.chosen_preset
        self.table.clear(columns=columns is not self.columns)
        if columns is not self.columns:
            self.columns = columns
            for at, name in enumerate(columns):
                self.table.add_column(Text(name, justify="left" if at < len(NAMED) else "right"))
        for name, row in zip(names, rows, strict=True):
            self.table.add_row(*row, key=name)
        if chosen in names:
            self.table.move_cursor(row=names.index(chosen))

    @property
    def chosen_preset(self) -> str | None:
        at = self.table.cursor_row
        keys = [key.value for key in self.table.rows]
        return keys[at] if 0 <= at < len(keys) else None

    @on(DataTable.RowHighlighted)
    def show_verdict(self) -> None:
        row = next((row for row in self.rows if row.preset == self.chosen_preset), None)
        told = self.query_one(Verdict)
        told.show(verdict_lines(self.rows, row, self.state, told.size.width))

    @on(DataTable.RowSelected)
    def choose(self) -> None:
        if self.chosen_preset and not is_going_on(self.state.comparison):
            self.post_message(PresetChosen(self.chosen_preset))

    def action_measure(self) -> None:
        self.post_message(ComparisonAsked())

    def action_cancel(self) -> None:
        self.post_message(ComparisonCancelled())


def is_going_on(comparison: Comparison | None) -> bool:
    return comparison is not None and not comparison.is_over


def progress_line(state: RunState) -> Content:
    comparison = state.comparison
    if comparison is None:
        asks = "only watched: its own loop decides" if state.watched else "m: measure each preset in this run"
        return Content.styled(" " if not state.is_heard else f" {asks}", "$foreground 60%")
    if comparison.is_over:
        ended = f"ended: {comparison.ended_by}" if comparison.ended_by else "done"
        return Content.styled(f" comparison {ended}", "$warning" if comparison.ended_by else "$success")
    waits = " · paused: space resumes" if state.phase is Phase.PAUSED else ""
    return Content.assemble((f" {in_progress(comparison)}", "bold $accent"), (waits, "$warning"))


def row_cells(row: Row, state: RunState, is_narrow: bool) -> list[Text]:
    found = list(cells(row))
    comparison = state.comparison
    if comparison and comparison.current == row.preset and comparison.stage is Stage.MEASURING:
        found[0] = "…"
    info = state.preset_info(row.preset)
    mark = sign(info, state)[0] if info and not (comparison and row.preset in comparison.problems) else "✗"
    mesh = "×".join(str(size) for size in row.mesh.values()) if is_narrow else figures.axes(row.mesh)
    kept = [found[at] for at in NARROW_CELLS] if is_narrow else found
    return [Text(f"{mark} {row.preset}"), Text(mesh), *(Text(text, justify="right") for text in kept)]


def verdict_lines(rows: Sequence[Row], row: Row | None, state: RunState, width: int) -> list[Content]:
    told: list[tuple[str, str]] = []
    if any(each.measured for each in rows):
        told.append((f"→ {verdict(rows, devices(state.ready))}", "$success"))
    if row is not None:
        told += [(line, "$error") for line in board_rows.problems([row])] or [(in_full(row, state.counted), "")]
    return [
        Content.styled(line, style)
        for text, style in told
        for line in textwrap.wrap(text, max(width, 8), subsequent_indent="  ")
    ]


def in_full(row: Row, counted: str) -> str:
    """What the table has no room for."""
    measured, compiled, estimate = row.measured, row.compiled, row.estimate
    parts = [f"{row.preset}: {figures.axes(row.mesh)}"]
    if measured:
        half = span(measured.lower_quartile_seconds, measured.upper_quartile_seconds)
        whole = span(measured.fastest_seconds, measured.slowest_seconds)
        parts.append(f"half of {measured.steps} steps within {half}, all within {whole}")
        parts.append(f"{measured.tokens_per_second:,.0f} {counted}/s")
    if compiled:
        parts.append(f"arguments {figures.size(compiled.argument_bytes)} and peak {figures.size(compiled.peak_bytes)}")
    elif estimate:
        held, peak = figures.size(estimate.argument_bytes), figures.size(estimate.peak_bytes)
        parts.append(f"by formula arguments {held} and peak {peak}")
    parts += board_rows.no_estimate(row)
    return "; ".join(parts)
