"""Traffic: the collectives of the compiled step, in total and one by one, compared with another preset."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.wire.descriptions import CollectiveInfo
from ...engine.wire.events import PresetCompiled
from ...engine.wire.step_breakdown import CollectiveTime
from ..bindings import identified
from ..messages import OriginRequested, RowChosen
from ..state.origin_pages import CompiledPage
from ..state.run_state import RunState
from ..state.tables import collective_columns
from ..widgets.flows import Flows
from ..widgets.lines import StyledText, Texts
from ..widgets.table import Table
from .run_screen import RunScreen


class TrafficScreen(RunScreen):
    """Totals by kind and mesh axes, a table of all collectives, and the details of the selected one."""

    HELP = """\
## Traffic

The collectives of the compiled step, per device. *Each* is the size of the full array on one device: the operand of a
reduction or exchange, the result of a gather, the input of a scatter. *Times* includes loop iterations; `?` if they
depend on data. The panel above has totals by kind and mesh axes; **b** chooses a preset of this run to compare with.
**Enter** opens the origin of a collective: the operation that needs it, and whose layouts meet there.

Once steps of this preset are profiled (**p**), *measured* is the time of each collective per step: waiting for other
devices included, and without what is hidden behind work. **m** opens it in Time.

*Overlapped* collectives are sent while the device computes: asynchronous ones with computation between their start and
their end in the compiler's schedule. On CPU all collectives are synchronous.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "traffic", [("b", "compare", "Baseline"), ("m", "open_time", "Time")]
    )

    def __init__(self) -> None:
        super().__init__()
        self.shown_layout: PresetCompiled | None = None
        self.measured: Mapping[str, CollectiveTime] = {}
        """By name of the instruction."""
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
        measured = measured_times(state)
        if state.layout is None or (state.layout is self.shown_layout and measured == self.measured):
            return
        if state.layout is not self.shown_layout:
            self.compared = state.previous
        self.shown_layout, self.measured = state.layout, measured
        self.infos = {str(at): info for at, info in enumerate(state.layout.collectives or ())}
        self.show_collectives()
        self.show_flows()
        self.show_details()

    def show_collectives(self) -> None:
        self.table.show_columns(collective_columns(self.measured), self.infos)

    def select(self, source: str, name: str = "") -> None:
        """Moves the cursor to a collective: the first of a source line, or the instruction `name`."""
        keys = [key for key, info in self.infos.items() if (info.name == name if name else info.source == source)]
        if keys:
            self.table.select(keys[0])

    def show_flows(self) -> None:
        if self.shown_layout:
            self.query_one(Flows).show_flows(self.shown_layout, self.state.compiled.get(self.compared or ""))

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_details(self) -> None:
        info = self.infos.get(self.table.selected or "")
        self.query_one(CollectiveDetails).show_texts(details(info) if info else [])

    @on(DataTable.RowSelected)
    def show_origin(self, event: DataTable.RowSelected) -> None:
        if info := self.infos.get(event.row_key.value or ""):
            self.post_message(OriginRequested(CompiledPage(info)))

    def action_open_time(self) -> None:
        info = self.infos.get(self.table.selected or "")
        if info and info.name in self.measured:
            self.post_message(RowChosen("time", (info.name,)))
        else:
            self.notify(
                f"No step of {self.state.preset} was profiled, or the trace has no such operation.", markup=False
            )

    def action_compare(self) -> None:
        """Compares with the next preset that was compiled in this run; after the last with none."""
        names = [None, *(name for name in self.state.compiled if name != self.state.preset)]
        self.compared = names[(names.index(self.compared) + 1) % len(names)] if self.compared in names else None
        self.show_flows()


def measured_times(state: RunState) -> Mapping[str, CollectiveTime]:
    """Returns the measured collectives of the preset that is active, by name; none if it was not profiled."""
    profiled, layout = state.profiled, state.layout
    if not profiled or not profiled.breakdown or not layout or profiled.preset != layout.preset:
        return {}
    return {each.name: each for each in profiled.breakdown.collectives}


class CollectiveDetails(Texts):
    """Kind, mesh axes, shapes, source line and operation of the selected collective; empty without one."""

    def on_mount(self) -> None:
        self.border_title, self.border_subtitle = "collective", "enter: origin"


def details(info: CollectiveInfo) -> list[StyledText]:
    shapes = ", ".join(f"{info.dtype}[{','.join(map(str, shape))}]" for shape in info.shapes[:4])
    more = f" and {len(info.shapes) - 4} more" if len(info.shapes) > 4 else ""
    origin = "written by the user" if info.written else "inserted by the compiler"
    timing = f"{'' if info.overlapped else 'not '}overlapped with computation"
    over = formatting.over(info.axes, info.network)
    texts = [
        f"{info.kind} over {over}, groups of {info.group_size}, {origin}, {timing}: {shapes}{more}",
        info.source or "source line unknown",
        info.op_name,
    ]
    return [(text, "") for text in texts]
