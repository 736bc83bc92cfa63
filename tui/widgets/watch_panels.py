"""What Watch shows: the presets, the loss, and what a step costs."""

from collections.abc import Iterable
from functools import partial

from textual import on
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList

from ..messages import PresetConsidered
from ..state.run_state import RunState
from .loss_chart import LossChart
from .panels import AboutPreset, LastSwitch, MemoryPerDevice, Panel, ThisStep, Traffic
from .preset_list import PresetList

LEAST_WIDTH = 24
"""Cells of a panel with its border, in which its figures are whole."""
REST_SECONDS = 1.0
"""After which the preset under the cursor is a likely one."""


class WatchPanels(Horizontal):
    def compose(self) -> Iterable[Widget]:
        yield Vertical(PresetList(), AboutPreset(), LastSwitch(), id="side")
        figures = Horizontal(ThisStep(), MemoryPerDevice(), Traffic(), id="figures")
        yield Vertical(LossChart(), figures)

    @property
    def chosen_preset(self) -> str | None:
        return self.query_one(PresetList).highlighted_preset

    def show_state(self, state: RunState) -> None:
        self.query_one(PresetList).show_state(state)
        self.query_one(LossChart).show_state(state)
        for panel in self.query(Panel):
            panel.show_state(state)

    def on_resize(self) -> None:
        """As many figures as have room; the help beside them takes some of it."""
        panels = self.query_one("#figures").children
        room = self.size.width - self.query_one("#side").size.width
        for place, panel in enumerate(panels):
            panel.display = place < max(1, room // LEAST_WIDTH)

    def toggle_logarithmic(self) -> None:
        self.query_one(LossChart).toggle_logarithmic()

    def on_mount(self) -> None:
        self.resting: Timer | None = None

    @on(OptionList.OptionHighlighted)
    def tell_about(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one(AboutPreset).show_preset(event.option.id)
        if self.resting is not None:
            self.resting.stop()
        self.resting = self.set_timer(REST_SECONDS, partial(self.consider, event.option.id or ""))

    def consider(self, preset: str) -> None:
        self.post_message(PresetConsidered(preset))
