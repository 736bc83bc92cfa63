"""The traffic of a step, added up by kind and mesh axes and compared with another preset."""

from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.traffic import FlowChange, changes, flows
from ...engine.wire.events import PresetCompiled
from ..state.step_words import overlap_words
from .lines import Lines, set_titles

MAX_LINES = 8
KIND_WIDTH, AXES_WIDTH, OPS_WIDTH, SIZE_WIDTH = 20, 14, 10, 9


class Flows(Lines):
    """A row with a bar for each kind and mesh axes, largest first, and what another preset has there."""

    def on_mount(self) -> None:
        self.subject: tuple[PresetCompiled, PresetCompiled | None] | None = None

    def show_flows(self, layout: PresetCompiled, compared: PresetCompiled | None) -> None:
        """Shows the traffic of `layout`; with `compared`, also where that differs."""
        self.subject = (layout, compared)
        subtitle = f"compared with {compared.preset}" if compared else "b: compare with another preset"
        words = ("traffic per device and step", overlap_words(flows(layout.collectives or ())))
        set_titles(self, ", ".join(filter(None, words)), subtitle)
        self.draw()

    def draw(self) -> None:
        if self.subject:
            lines = flow_lines(*self.subject, self.size.width)
            self.styles.height = min(len(lines), MAX_LINES) + 2
            self.show(lines)


def flow_lines(layout: PresetCompiled, compared: PresetCompiled | None, width: int) -> list[Content]:
    """Returns a row for each kind and mesh axes, or why there is none."""
    if layout.collectives is None:
        return [Content.styled("unknown: the compiled step is missing or cannot be read: see engine.log", "$warning")]
    found = changes(compared.collectives or () if compared else (), layout.collectives)
    if not found:
        return [Content.styled("no collectives: the devices do not communicate in a step", "$foreground 60%")]
    found.sort(key=lambda flow: -(flow.other_bytes_per_device or 0))
    most = max(max(flow.other_bytes_per_device or 0, flow.bytes_per_device or 0) for flow in found)
    return [_line(flow, most, compared, width) for flow in found]


def _line(flow: FlowChange, most: int, compared: PresetCompiled | None, width: int) -> Content:
    """Returns one row: `all-reduce  model  22 ops  4.72 MB ━━━━━━  ● dp-tp4: 11 ops  2.36 MB`."""
    other = ""
    if compared and (flow.count, flow.bytes_per_device) != (flow.other_count, flow.other_bytes_per_device):
        other = f"  ● {compared.preset}: " + (_amount(flow.count, flow.bytes_per_device) if flow.count != 0 else "none")
    amount = _amount(flow.other_count, flow.other_bytes_per_device) if flow.other_count != 0 else "none"
    over = formatting.over(flow.axes, flow.network)
    head = f"{flow.kind:<{KIND_WIDTH}}{over:<{AXES_WIDTH}}{amount:>{OPS_WIDTH + SIZE_WIDTH}} "
    room = max(0, min(40, width - len(head) - len(other)))
    filled = round(room * (flow.other_bytes_per_device or 0) / most) if most else 0
    return Content.assemble(head, ("━" * filled, "$primary"), " " * (room - filled), (other, "$accent"))


def _amount(count: int | None, moved: int | None) -> str:
    return f"{formatting.ops(count)}  {formatting.in_step(moved):>{SIZE_WIDTH - 2}}"
