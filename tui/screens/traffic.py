"""Traffic: the collectives of the compiled step, in total and one by one, compared with another preset."""

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
from ..bindings import identified
from ..messages import OriginRequested
from ..state.origin_pages import CompiledPage
from ..state.run_state import RunState
from ..widgets.collective_details import CollectiveDetails
from ..widgets.flows import Flows
from ..widgets.table import Table, right
from .run_screen import RunScreen

COLUMNS = ("collective", "over", "times", "each", "per step", "by", "source", "operation")


class TrafficScreen(RunScreen):
    """Totals by kind and mesh axes, a table of all collectives, and the details of the selected one."""

    HELP = """\
## Traffic

The collectives of the compiled step, per device. *Each* is the size of the full array on one device: the operand of a
reduction or exchange, the result of a gather, the input of a scatter. *Times* includes loop iterations; `?` if they
depend on data. The panel above has totals by kind and mesh axes; **b** chooses a preset of this run to compare with.
**Enter** opens the origin of a collective: the operation that needs it, and whose layouts meet there.

*Overlapped* collectives are sent while the device computes: asynchronous ones with computation between their start and
their end in the compiler's schedule. On CPU all collectives are synchronous.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified("traffic", [("b", "compare", "Baseline")])

    def __init__(self) -> None:
        super().__init__()
        self.shown_layout: PresetCompiled | None = None
        self.compared: str | None = None
        self.infos: dict[str, CollectiveInfo] = {}
        """By row."""

    def body(self) -> Iterable[Widget]:
        yield Flows()
        self.table = Table()
        yield self.table
        yield CollectiveDetails()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if state.layout is None or state.layout is self.shown_layout:
            return
        self.shown_layout = state.layout
        self.compared = state.previous
        self.infos = {str(at): info for at, info in enumerate(state.layout.collectives or ())}
        self.table.show_rows(COLUMNS, {key: _cells(info) for key, info in self.infos.items()})
        self.show_flows()
        self.show_details()

    def select(self, source: str) -> None:
        """Moves the cursor to the first collective of a source line."""
        key = next((key for key, info in self.infos.items() if info.source == source), None)
        if key is not None:
            self.table.select(key)

    def show_flows(self) -> None:
        """Shows the totals, compared with those of the chosen preset."""
        if self.shown_layout:
            self.query_one(Flows).show_flows(self.shown_layout, self.state.compiled.get(self.compared or ""))

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_details(self) -> None:
        self.query_one(CollectiveDetails).show_collective(self.infos.get(self.table.selected or ""))

    @on(DataTable.RowSelected)
    def show_origin(self, event: DataTable.RowSelected) -> None:
        """Opens the origin of a collective: why it is needed."""
        if info := self.infos.get(event.row_key.value or ""):
            self.post_message(OriginRequested(CompiledPage(info)))

    def action_compare(self) -> None:
        """Compares with the next preset that was compiled in this run; after the last with none."""
        names = [None, *(name for name in self.state.compiled if name != self.state.preset)]
        self.compared = names[(names.index(self.compared) + 1) % len(names)] if self.compared in names else None
        self.show_flows()


def _cells(info: CollectiveInfo) -> list[Text]:
    return [
        Text(info.kind),
        Text(figures.over(info.axes)),
        right(figures.times(info.count)),
        right(figures.size(info.bytes_each)),
        right(figures.in_step(info.bytes_per_device)),
        Text("user" if info.written else "compiler", "" if info.written else "dim"),
        Text(figures.short_source(info.source)),
        Text(figures.op(info.op_name)),
    ]
