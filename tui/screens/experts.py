"""Experts: how evenly the tokens of a step are spread over the experts of each layer, and what the spread costs."""

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget

from ...engine.base import formatting
from ..bindings import identified, key_of
from ..state.experts import LOADS, expert_axes, layer_loads, part_words
from ..state.run_state import RunState
from ..widgets.heat_map import FAINT, HeatRow, draw_heat_map, folded
from ..widgets.lines import StateLines, set_titles, wrapped
from ..widgets.table import Table
from .run_screen import RunScreen

NO_LOADS = "The load of the experts was not measured: {key} measures now, --numbers-every N every N steps."


class ExpertsScreen(RunScreen):
    """A map of layers × experts; below it the figures of each layer."""

    HELP = """\
## Experts

Of models with experts: a row for each layer, a column for each expert, as measured last. Each value is the tokens of
the expert ÷ their fair share: orange has more, blue has fewer, `0` has none; where several share a cell it shows the
strangest. The lower border says how much more than the mean the busiest part of the devices computes. Below, of each
layer: *variation* is standard deviation ÷ mean of the loads, *effective* exp(entropy) ÷ number of experts, *dead* are
those without a token. **M** measures now, `--numbers-every N` every N steps; **escape** returns to Watch.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "experts", [("M", "app.measure_numbers", "Measure"), ("escape", "app.switch_mode('watch')", "Watch")]
    )

    def body(self) -> Iterable[Widget]:
        yield LoadMap()
        yield Table()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        self.query_one(LoadMap).show_state(state)
        newest = state.numbers.newest
        if newest and newest.experts:
            rows = {str(each.layer): each for each in layer_loads(newest.experts)}
            table = self.query_one(Table)
            table.show_columns(LOADS, rows)
            set_titles(table.rows, formatting.counted(len(rows), "layer"))


class LoadMap(StateLines):
    """The load of each expert in each layer, and the most loaded part of the devices."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        newest = state.numbers.newest
        status = "measuring …" if state.numbers.is_requested else ""
        if newest is None or newest.experts is None:
            set_titles(self, "tokens ÷ fair share", status)
            return wrapped([(NO_LOADS.format(key=key_of(self, "app.measure_numbers")), FAINT)], width)
        words = part_words(newest.experts, expert_axes(state.arrays_of(newest.preset)))
        set_titles(self, f"tokens ÷ fair share, step {newest.step:,}", status or words)
        rows = [HeatRow(f"layer {each.layer}", each.load, 1.0) for each in layer_loads(newest.experts)]
        return draw_heat_map("expert", folded(rows, self.size.height - 1), width, self.size.height)
