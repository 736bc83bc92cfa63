"""Traffic: the collectives of the compiled step, in total and one by one, compared with another preset."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.hlo.traffic import FlowChange, changes, flows
from ...engine.wire.collective import CollectiveInfo
from ...engine.wire.events import PresetCompiled
from ...engine.wire.step_breakdown import CollectiveTime
from ..bindings import identified
from ..messages import OriginRequested, RowChosen
from ..state.origin_pages import CompiledPage
from ..state.run_state import RunState
from ..state.step_words import overlap_words
from ..state.tables import collective_columns, moved
from ..widgets.lines import Lines, StyledText, Texts, axes_content, set_titles
from ..widgets.table import Table
from .run_screen import RunScreen


class TrafficScreen(RunScreen):
    """Totals by kind and mesh axes, a table of all collectives, and the details of the selected one."""

    HELP = """\
## Traffic

The collectives of the compiled step. *Payload* is the full array on one device each time: the operand of a reduction or
exchange, the result of a gather, the input of a scatter. *Times* includes loop iterations; `?` if they depend on data.
*Array* is what is gathered, or the gradient that is summed; activations have no name there.
*Sent* is the bytes that one device sends on a ring, as in every view: for n devices (n − 1) ÷ n of the payload, twice
that for an all-reduce. The panel above has totals by kind and mesh axes; **b** chooses a preset of this run to compare
with.
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

    def body(self) -> Iterable[Widget]:
        yield Flows()
        self.table = Table(has_full_text=False)
        yield self.table
        yield CollectiveDetails()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        measured = {each.name: each for each in state.breakdown.collectives} if state.breakdown else {}
        if state.layout is None or (state.layout is self.shown_layout and measured == self.measured):
            return
        if state.layout is not self.shown_layout:
            self.compared = state.previous
        self.shown_layout, self.measured = state.layout, measured
        rows = {str(at): info for at, info in enumerate(state.layout.collectives or ())}
        self.table.show_columns(collective_columns(self.measured), rows)
        self.show_flows()
        self.show_details()

    def select(self, source: str, name: str = "") -> None:
        """Moves the cursor to a collective: the first of a source line, or the instruction `name`."""
        rows: Mapping[str, CollectiveInfo] = self.table.given
        keys = [key for key, info in rows.items() if (info.name == name if name else info.source == source)]
        if keys:
            self.table.select(keys[0])

    def show_flows(self) -> None:
        if self.shown_layout:
            self.query_one(Flows).show_flows(self.shown_layout, self.state.compiled.get(self.compared or ""))

    @property
    def selected(self) -> CollectiveInfo | None:
        return self.table.given.get(self.table.selected or "")

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_details(self) -> None:
        info = self.selected
        self.query_one(CollectiveDetails).show_texts(details(info) if info else [])

    @on(DataTable.RowSelected)
    def show_origin(self, event: DataTable.RowSelected) -> None:
        if info := self.table.given.get(event.row_key.value or ""):
            self.post_message(OriginRequested(CompiledPage(info)))

    def action_open_time(self) -> None:
        info = self.selected
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


class CollectiveDetails(Texts):
    """Kind, mesh axes, shapes, source line and operation of the selected collective; empty without one."""

    def on_mount(self) -> None:
        self.border_title, self.border_subtitle = "collective", "enter: origin"


MOST_NAMED = 3


def details(info: CollectiveInfo) -> list[StyledText]:
    shapes = ", ".join(f"{info.dtype}[{','.join(map(str, shape))}]" for shape in info.shapes[:4])
    more = f" and {len(info.shapes) - 4} more" if len(info.shapes) > 4 else ""
    origin = "written by the user" if info.written else "inserted by the compiler"
    timing = f"{'' if info.overlapped else 'not '}overlapped with computation"
    over = formatting.over(info.axes, info.network)
    texts = [
        *filter(None, [moved(info, MOST_NAMED)]),
        f"{info.kind} over {over}, groups of {info.group_size}, {origin}, {timing}: {shapes}{more}",
        info.source or "source line unknown",
        info.op_name,
    ]
    return [(text, "") for text in texts]


MAX_LINES = 8
OPS_WIDTH, SIZE_WIDTH = 10, 9


class Flows(Lines):
    """A row with a bar for each kind and mesh axes, largest first, and what another preset has there."""

    def on_mount(self) -> None:
        self.subject: tuple[PresetCompiled, PresetCompiled | None] | None = None

    def show_flows(self, layout: PresetCompiled, compared: PresetCompiled | None) -> None:
        """Shows the traffic of `layout`; with `compared`, also where that differs."""
        self.subject = (layout, compared)
        subtitle = f"compared with {compared.preset}" if compared else "b: compare with another preset"
        words = ("sent per device and step", overlap_words(flows(layout.collectives or ())))
        set_titles(self, ", ".join(filter(None, words)), subtitle)
        self.draw()

    def draw(self) -> None:
        if self.subject:
            lines = flow_lines(*self.subject, self.size.width)
            self.styles.height = min(len(lines), MAX_LINES) + self.gutter.height
            self.show(lines)


def flow_lines(layout: PresetCompiled, compared: PresetCompiled | None, width: int) -> list[Content]:
    """Returns a row for each kind and mesh axes, or why there is none."""
    if layout.collectives is None:
        return [Content.styled("unknown: the compiled step is missing or cannot be read: see engine.log", "$warning")]
    found = changes(compared.collectives or () if compared else (), layout.collectives)
    if not found:
        return [Content.styled("no collectives: the devices do not communicate in a step", "$text-muted")]
    found.sort(key=lambda flow: -(flow.other_bytes_sent or 0))
    most = max(max(flow.other_bytes_sent or 0, flow.bytes_sent or 0) for flow in found)
    names = [(flow.kind, formatting.over(flow.axes, flow.network)) for flow in found]
    kinds, axes = (2 + max(map(len, each)) for each in zip(*names, strict=True))
    heads = [
        axes_content(f"{kind:<{kinds}}{over:<{axes}}", flow.axes)
        for (kind, over), flow in zip(names, found, strict=True)
    ]
    return [_line(head, flow, most, compared, width) for head, flow in zip(heads, found, strict=True)]


def _line(head: Content, flow: FlowChange, most: int, compared: PresetCompiled | None, width: int) -> Content:
    """Returns one row, which begins with `head`: `all-reduce  model  22 ops  4.72 MB ━━━  ● dp-tp4: 11 ops`."""
    other = ""
    if compared and (flow.count, flow.bytes_sent) != (flow.other_count, flow.other_bytes_sent):
        other = f"  ● {compared.preset}: " + (_amount(flow.count, flow.bytes_sent) if flow.count != 0 else "none")
    amount = _amount(flow.other_count, flow.other_bytes_sent) if flow.other_count != 0 else "none"
    head += f"{amount:>{OPS_WIDTH + SIZE_WIDTH}} "
    room = max(0, min(40, width - head.cell_length - len(other)))
    filled = round(room * (flow.other_bytes_sent or 0) / most) if most else 0
    return Content.assemble(head, ("━" * filled, "$primary"), " " * (room - filled), (other, "$accent"))


def _amount(count: int | None, moved: int | None) -> str:
    return f"{formatting.counted(count, 'op')}  {formatting.in_step(moved):>{SIZE_WIDTH - 2}}"
