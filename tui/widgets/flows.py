"""What a step moves, added up by kind and mesh axes, with a bar each; beside it the same of another preset."""

from textual.content import Content

from ...engine.analysis.traffic import FlowChange, changes
from ...engine.base import figures
from ...engine.wire.events import PresetCompiled
from .lines import Lines, entitle

MOST_LINES = 8
KIND_WIDTH, AXES_WIDTH, OPS_WIDTH, SIZE_WIDTH = 20, 14, 10, 9


class Flows(Lines):
    def on_mount(self) -> None:
        self.subject: tuple[PresetCompiled, PresetCompiled | None] | None = None

    def show_flows(self, layout: PresetCompiled, compared: PresetCompiled | None) -> None:
        self.subject = (layout, compared)
        beside = f"beside {compared.preset}" if compared else "c: compare with another preset"
        entitle(self, "traffic per device and step", beside)
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.subject:
            lines = flow_lines(*self.subject, self.size.width)
            self.styles.height = min(len(lines), MOST_LINES) + 2
            self.show(lines)


def flow_lines(layout: PresetCompiled, compared: PresetCompiled | None, width: int) -> list[Content]:
    if layout.collectives is None:
        return [
            Content.styled("not known: no compiled step, or none that can be read: see the engine's output", "$warning")
        ]
    found = changes(compared.collectives or () if compared else (), layout.collectives)
    if not found:
        return [Content.styled("no collectives: the devices never talk to each other in a step", "$foreground 60%")]
    found.sort(key=lambda flow: -(flow.other_bytes_per_device or 0))
    most = max(max(flow.other_bytes_per_device or 0, flow.bytes_per_device or 0) for flow in found)
    return [_line(flow, most, compared, width) for flow in found]


def _line(flow: FlowChange, most: int, compared: PresetCompiled | None, width: int) -> Content:
    """`all-reduce  model  22 ops  4.72 MB ━━━━━━  dp-tp4: 22 ops  4.72 MB`"""
    there = ""
    if compared and (flow.count, flow.bytes_per_device) != (flow.other_count, flow.other_bytes_per_device):
        there = f"  ● {compared.preset}: " + (_amount(flow.count, flow.bytes_per_device) if flow.count != 0 else "none")
    here = _amount(flow.other_count, flow.other_bytes_per_device) if flow.other_count != 0 else "none"
    head = f"{flow.kind:<{KIND_WIDTH}}{figures.over(flow.axes):<{AXES_WIDTH}}{here:>{OPS_WIDTH + SIZE_WIDTH}} "
    room = max(0, min(40, width - len(head) - len(there)))
    filled = round(room * (flow.other_bytes_per_device or 0) / most) if most else 0
    return Content.assemble(head, ("━" * filled, "$primary"), " " * (room - filled), (there, "$accent"))


def _amount(count: int | None, moved: int | None) -> str:
    return f"{figures.ops(count)}  {figures.in_step(moved):>{SIZE_WIDTH - 2}}"
