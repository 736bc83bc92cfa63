"""The choice of runs whose losses Watch draws, too."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Label, OptionList

from ...engine.wire.run_directory import RunDirectory
from ..widgets.other_curves import MAX_CURVES
from ..widgets.run_list import RunList
from .dialog import Dialog


class OverlayScreen(Dialog[list[RunDirectory]]):
    """The other runs, newest first, those that are drawn marked. Its result is the list of marked ones."""

    BINDINGS: ClassVar[list[BindingType]] = [("space", "mark", "Mark"), ("escape,i,q", "close", "Close")]

    def __init__(self, runs: Iterable[RunDirectory], chosen: Iterable[RunDirectory]) -> None:
        super().__init__()
        self.list = RunList(runs, chosen=[run.name for run in chosen])

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "losses of other runs"
            yield self.list
            keys = f"enter or space selects up to {MAX_CURVES} runs; esc closes"
            yield Label(keys if self.list.runs else "There is no other run.", markup=False)

    @on(OptionList.OptionSelected)
    def mark_selected(self, event: OptionList.OptionSelected) -> None:
        self.mark(event.option_id or "")

    def action_mark(self) -> None:
        if run := self.list.run:
            self.mark(run.name)

    def mark(self, name: str) -> None:
        chosen = self.list.chosen or set()
        if name not in chosen and len(chosen) >= MAX_CURVES:
            self.notify(f"{MAX_CURVES} runs at most: unmark one first", severity="warning")
        else:
            self.list.toggle(name)

    def action_close(self) -> None:
        chosen = self.list.chosen or set()
        self.dismiss([run for run in self.list.runs.values() if run.name in chosen])
