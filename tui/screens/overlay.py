"""The choice of runs whose losses Watch draws, too."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Label

from ...engine.wire.run_directory import RunDirectory
from ..widgets.other_curves import MAX_CURVES
from ..widgets.run_table import RunTable
from .dialog import Dialog


class OverlayScreen(Dialog[list[RunDirectory]]):
    """The other runs, newest first, those that are drawn marked. Its result is the list of marked ones."""

    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [("space", "mark", "Mark"), ("escape,i,q", "close", "Close")]

    def __init__(self, runs: Iterable[RunDirectory], chosen: Iterable[RunDirectory]) -> None:
        super().__init__()
        self.table = RunTable(runs, chosen=[run.name for run in chosen])

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "losses of other runs"
            yield self.table
            keys = f"enter or space selects up to {MAX_CURVES} runs; esc closes"
            yield Label(keys if self.table.runs else "There is no other run.", markup=False)

    @on(DataTable.RowSelected)
    def mark_selected(self, event: DataTable.RowSelected) -> None:
        self.mark(event.row_key.value or "")  # the cursor may have moved on

    def action_mark(self) -> None:
        if run := self.table.run:
            self.mark(run.name)

    def mark(self, name: str) -> None:
        chosen = self.table.chosen or set()
        if name not in chosen and len(chosen) >= MAX_CURVES:
            self.notify(f"{MAX_CURVES} runs at most: unmark one first", severity="warning")
        else:
            self.table.toggle(name)

    def action_close(self) -> None:
        chosen = self.table.chosen or set()
        self.dismiss([run for run in self.table.runs.values() if run.name in chosen])
