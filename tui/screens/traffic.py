"""Traffic: the collectives of the compiled step, added up and one by one, beside those of another preset."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import figures
from ...engine.wire.descriptions import CollectiveInfo
from ...engine.wire.events import PresetCompiled
from ..state.run_state import RunState
from ..widgets.collective_details import CollectiveDetails
from ..widgets.flows import Flows
from ..widgets.rows import Rows
from .run_screen import RunScreen

COLUMNS = ("collective", "over", "times", "each", "a step", "by", "source", "operation")


class TrafficScreen(RunScreen):
    HELP = """\
## Traffic

The collectives of the compiled step, per device. *Each* is the whole array on one device: what is reduced or exchanged,
what a gather yields, what a scatter takes. *Times* counts the runs of loops; `?` where that depends on data. Above they
are added up by kind and mesh axes; **c** compares with another preset of this run.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [("c", "compare", "Compare")]

    def body(self) -> Iterable[Widget]:
        yield Flows()
        self.table = Rows(cursor_type="row", zebra_stripes=True)
        yield self.table
        yield CollectiveDetails()

    def on_mount(self) -> None:
        self.layout_shown: PresetCompiled | None = None
        self.compared: str | None = None
        self.table.add_columns(*COLUMNS)

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if state.layout is None or state.layout is self.layout_shown:
            return
        self.layout_shown = state.layout
        self.compared = state.previous
        self.table.clear()
        for info in state.layout.collectives or ():
            self.table.add_row(*_cells(info))
        self.show_flows()
        self.show_details()

    def show_flows(self) -> None:
        if self.layout_shown:
            self.query_one(Flows).show_flows(self.layout_shown, self.state.compiled.get(self.compared or ""))

    @on(DataTable.RowHighlighted)
    def show_details(self) -> None:
        infos = (self.layout_shown.collectives if self.layout_shown else None) or []
        index = self.table.cursor_row
        self.query_one(CollectiveDetails).show_collective(infos[index] if 0 <= index < len(infos) else None)

    def action_compare(self) -> None:
        """The next of the presets that were compiled in this run; after the last, none."""
        names = [None, *(name for name in self.state.compiled if name != self.state.preset)]
        self.compared = names[(names.index(self.compared) + 1) % len(names)] if self.compared in names else None
        self.show_flows()


def _cells(info: CollectiveInfo) -> list[Text]:
    return [
        Text(info.kind),
        Text(figures.over(info.axes)),
        Text(figures.times(info.count), justify="right"),
        Text(figures.size(info.bytes_each), justify="right"),
        Text(figures.in_step(info.bytes_per_device), justify="right"),
        Text("you" if info.written else "compiler", "" if info.written else "dim"),
        Text(figures.short_source(info.source)),
        Text(figures.op(info.op_name)),
    ]
