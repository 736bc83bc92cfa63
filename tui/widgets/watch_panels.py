"""The panels of the Watch view."""

from collections.abc import Iterable
from functools import partial

from textual import on
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList

from ...engine.wire.commands import PreparePreset
from ..messages import CommandRequested
from ..state.run_state import RunState
from .curve_list import CurveList
from .headline import Headline
from .lines import StateLines
from .loss_chart import LOSS, LossChart
from .panels import AboutPreset, LastSwitch, MemoryPerDevice, ThisStep, Traffic
from .preset_list import PresetList

MIN_PANEL_WIDTH = 24
"""Least cells of a panel with its border: narrower ones would cut figures."""
CONSIDER_AFTER_SECONDS = 1.0
"""Seconds on a preset after which a switch to it is likely."""


class WatchPanels(Horizontal):
    """On the left the presets or curves, and the last switch; on the right the loss, and below it a step's figures."""

    def compose(self) -> Iterable[Widget]:
        yield Vertical(PresetList(), CurveList(), AboutPreset(), LastSwitch(), id="side")
        figures = Horizontal(MemoryPerDevice(), Traffic(), ThisStep(), id="figures")
        yield Vertical(Headline(), LossChart(), figures)

    @property
    def chosen_preset(self) -> str | None:
        return self.query_one(PresetList).highlighted_preset

    def show_state(self, state: RunState) -> None:
        presets, curves = self.query_one(PresetList), self.query_one(CurveList)
        if state.watched and not self.has_class("-watched"):
            self.add_class("-watched")
            curves.focus()
        (curves if state.watched else presets).show_state(state)
        for lines in self.query(StateLines):
            lines.show_state(state)

    def on_resize(self) -> None:
        panels = self.query_one("#figures").children
        room = self.size.width - self.query_one("#side").size.width
        for place, panel in enumerate(panels):
            panel.display = place < max(1, room // MIN_PANEL_WIDTH)

    @property
    def chart(self) -> LossChart:
        return self.query_one(LossChart)

    def on_mount(self) -> None:
        self.rest_timer: Timer | None = None

    @on(OptionList.OptionHighlighted, "CurveList")
    def draw_curve(self, event: OptionList.OptionHighlighted) -> None:
        self.chart.choose(event.option.id or LOSS)

    @on(OptionList.OptionHighlighted, "PresetList")
    def describe_preset(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one(AboutPreset).show_preset(event.option.id)
        if self.rest_timer is not None:
            self.rest_timer.stop()
        self.rest_timer = self.set_timer(CONSIDER_AFTER_SECONDS, partial(self.prepare, event.option.id or ""))

    def prepare(self, preset: str) -> None:
        """Compiles a preset ahead of a likely switch to it."""
        state = self.query_one(PresetList).state
        info = state.preset_info(preset)
        if info and info.fits and preset not in state.compiled and state.is_live and not state.is_comparing:
            self.post_message(CommandRequested(PreparePreset(preset)))
