"""Compare: estimated, compiled and measured figures of each preset in this run, the best preset first."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.planning.ranking import Row
from ..bindings import identified
from ..messages import CommandRequested, ComparisonRequested, PresetChosen, ViewShown
from ..state import board_rows
from ..state.availability import why_not
from ..state.comparison import Stage, in_progress
from ..state.measured_rows import columns, devices, rows_of, step_seconds, verdict
from ..state.run_state import Phase, RunState
from ..widgets.lines import Lines, set_titles
from ..widgets.preset_board import PresetBoard
from ..widgets.preset_list import StepTimes, state_mark
from .run_screen import RunScreen


class CompareScreen(RunScreen):
    """A table of the presets with their figures, the progress of a comparison above it, its verdict below."""

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
        self.times = StepTimes()
        self.left_out: set[str] = set()
        """Presets that are not to be measured."""

    def body(self) -> Iterable[Widget]:
        self.progress = Lines(id="progress")  # of its own, so that the table need not be redrawn
        yield self.progress
        self.board = PresetBoard()
        yield self.board

    def on_resize(self) -> None:
        self.show_state(self.state)

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        rows = rows_of(state)
        is_estimating = state.ready and state.config and not state.estimates and state.is_live
        title = f"presets on {devices(state.ready)}" if state.ready else "presets"
        set_titles(self.board.table.rows, title, "estimating …" if is_estimating else "per device and step")
        self.progress.show([progress_line(state)])
        is_wide = self.size.width >= board_rows.WIDE_FROM
        shown = columns(state.counted, is_wide, self.mark, self.status, self.seconds)
        self.board.show_rows(shown, rows)
        is_measured = any(row.measured for row in rows)
        self.board.hints.show_texts([(f"→ {verdict(rows, devices(state.ready))}", "$success")] if is_measured else [])

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
        return "left out" if row.preset in self.left_out and not row.measured else ""

    def seconds(self, row: Row) -> float | None:
        return step_seconds(row) or self.times.of(self.state).get(row.preset)

    @property
    def chosen_preset(self) -> str | None:
        return self.board.table.selected

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
        if self.state.comparison and (command := self.state.comparison.cancel()):
            self.post_message(CommandRequested(command))
        self.post_message(ViewShown())


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
