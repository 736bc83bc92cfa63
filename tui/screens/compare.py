"""Compare: estimated, compiled and measured figures of each preset in this run, the best preset first."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.planning.ranking import Row
from ..bindings import identified
from ..messages import ComparisonCancelled, ComparisonRequested, PresetChosen
from ..state import board_rows
from ..state.availability import why_not
from ..state.comparison import Stage, in_progress
from ..state.measured_rows import columns, devices, listed_presets, rows_of, span, verdict
from ..state.run_state import Phase, RunState
from ..widgets.lines import Lines, StyledText, Texts, set_titles
from ..widgets.preset_list import StepTimes, state_mark
from ..widgets.table import Table
from .run_screen import RunScreen


class Progress(Lines):
    """The state of the running comparison, in one line of its own so that the table need not be redrawn."""


class Verdict(Texts):
    """The recommendation, and all figures of the row under the cursor."""

    INDENT = "  "


class CompareScreen(RunScreen):
    """A table of the presets with their figures, the progress of a comparison above it and its verdict below."""

    HELP = """\
## Compare

Each preset as compiled for these devices, and as measured in this run. **m** measures all that fit, except the
pitfalls and those that **-** leaves out: the run switches to each in turn and keeps training, so no step is lost. The
first three steps after a switch, and steps during a compilation, are not counted. **Escape** cancels; at the end the
run returns to the preset it started from. **Enter** switches to the preset under the cursor.

*Step time* is the median, *middle 50 %* the quartiles; before the comparison it is the median of the last steps under a
preset. *In use* is measured; *state + batch* and *peak* are the compiler's. *Sent* is the bytes one device sends in a
step: from the compiled program, or as traced (≈) before there is one. A run in an external loop has one layout, and
nothing is measured in it.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "compare", [("m", "measure", "Measure"), ("minus", "leave_out", "Leave out"), ("escape", "cancel", "Cancel")]
    )
    needs_estimates = True

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.times = StepTimes()
        self.left_out: set[str] = set()
        """Presets that are not to be measured."""
        self.enabled_actions: set[str] = {"measure"}
        """Actions whose keys the footer shows as enabled."""

    def body(self) -> Iterable[Widget]:
        yield Progress()
        self.table = Table(has_full_text=False)
        yield self.table
        yield Verdict()

    def on_resize(self) -> None:
        self.show_state(self.state)

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        self.rows = rows_of(state, listed_presets(state))
        is_estimating = state.ready and state.config and not state.estimates and state.is_live
        title = f"presets on {devices(state.ready)}" if state.ready else "presets"
        set_titles(self.table.rows, title, "estimating …" if is_estimating else "per device and step")
        self.query_one(Progress).show([progress_line(state)])
        shown = columns(state.counted, self.size.width >= board_rows.WIDE_FROM, self.mark, self.status)
        self.table.show_columns(shown, {row.preset: row for row in self.rows})
        self.show_verdict()
        self.show_keys()

    def show_keys(self) -> None:
        actions = {action for action in ("measure", "cancel") if self.check_action(action, ())}
        if actions != self.enabled_actions:
            self.enabled_actions = actions
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "cancel":
            return self.state.is_comparing
        return not why_not(action, self.state) and not (action == "measure" and self.state.is_comparing)

    def mark(self, row: Row) -> str:
        info, comparison = self.state.preset_info(row.preset), self.state.comparison
        is_wrong = comparison and row.preset in comparison.problems
        return f"{state_mark(info, self.state)[0]} " if info and not is_wrong else "✗ "

    def status(self, row: Row) -> str:
        comparison = self.state.comparison
        if comparison and comparison.current == row.preset and comparison.stage is Stage.MEASURING:
            return "…"
        if row.measured:
            return ""
        seconds = self.times.of(self.state).get(row.preset)
        return "left out" if row.preset in self.left_out else formatting.seconds(seconds) if seconds else ""

    @property
    def chosen_preset(self) -> str | None:
        return self.table.selected

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_verdict(self) -> None:
        row = next((row for row in self.rows if row.preset == self.chosen_preset), None)
        self.query_one(Verdict).show_texts(verdict_texts(self.rows, row, self.state))

    @on(DataTable.RowSelected)
    def choose(self) -> None:
        if self.chosen_preset and not self.state.is_comparing:
            self.post_message(PresetChosen(self.chosen_preset))

    def action_measure(self) -> None:
        self.post_message(ComparisonRequested(frozenset(self.left_out)))

    def action_leave_out(self) -> None:
        if self.chosen_preset:
            self.left_out ^= {self.chosen_preset}
            self.show_state(self.state)

    def action_cancel(self) -> None:
        self.post_message(ComparisonCancelled())


def progress_line(state: RunState) -> Content:
    """Returns what the comparison is doing, how it ended, or how to start one."""
    comparison = state.comparison
    if comparison is None:
        hint = "external loop: it decides its own layout" if state.watched else "m: measure each preset in this run"
        return Content.styled(" " if not state.is_live else f" {hint}", "$text-muted")
    if comparison.is_over:
        ended = f"ended: {comparison.ended_by}" if comparison.ended_by else "done"
        return Content.styled(f" comparison {ended}", "$warning" if comparison.ended_by else "$success")
    waits = " · paused: space resumes" if state.phase is Phase.PAUSED else ""
    left = comparison.seconds_left
    about = "" if left is None else f" · about {formatting.seconds(max(1.0, left))} left"
    return Content.assemble((f" {in_progress(comparison)}", "bold $accent"), about, (waits, "$warning"))


def verdict_texts(rows: Sequence[Row], row: Row | None, state: RunState) -> list[StyledText]:
    """Returns the verdict once anything is measured, then the problems or the figures of `row`."""
    texts: list[StyledText] = []
    if any(each.measured for each in rows):
        texts.append((f"→ {verdict(rows, devices(state.ready))}", "$success"))
    if row is not None:
        texts += [(line, "$error") for line in board_rows.problems([row])] or [(row_summary(row, state.counted), "")]
    return texts


def row_summary(row: Row, counted: str) -> str:
    """Returns the figures of a row that the table has no room for, in one sentence."""
    measured, compiled, estimate = row.measured, row.compiled, row.estimate
    parts = [f"{row.preset}: {formatting.axes(row.mesh)}"]
    if measured:
        middle_half = span(measured.lower_quartile_seconds, measured.upper_quartile_seconds)
        full_range = span(measured.fastest_seconds, measured.slowest_seconds)
        parts.append(f"middle 50 % of {measured.steps} steps {middle_half}, all {full_range}")
        parts.append(f"{measured.tokens_per_second:,.0f} {counted}/s")
    if compiled:
        parts.append(
            f"state + batch {formatting.size(compiled.argument_bytes)}, peak {formatting.size(compiled.peak_bytes)}"
        )
    elif estimate:
        held, peak = formatting.size(estimate.argument_bytes), formatting.size(estimate.peak_bytes)
        parts.append(f"traced: state + batch {held}, peak {peak}")
    parts += board_rows.caveats(row)
    return "; ".join(parts)
