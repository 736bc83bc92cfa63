"""One step as a timeline: for each device what it computes, and its collectives below; a cursor names what is there."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message

from ...engine.base import formatting
from ...engine.wire.step_breakdown import TICKS, DeviceTimeline, OperationTime, StepBreakdown, Timeline
from ..bindings import identified
from .lines import Lines, set_titles
from .step_bar import NAMES, PARTS

LEAST = 20
"""Least ticks that are shown."""
BELOW = 3
"""Lines below the lanes: the axis, and what is under the cursor in both."""


@dataclass(frozen=True)
class Shown:
    begin: int
    end: int
    operation: OperationTime | None
    """The operation, or the longest of several; None if the breakdown does not list it."""
    is_merged: bool
    is_waiting: bool = False
    """Whether it is a collective that others have not begun."""


@dataclass(frozen=True)
class DeviceLanes:
    device: int
    work: Sequence[Shown]
    collectives: Sequence[Shown]
    """Its collectives, waiting and in progress, in order."""


class TimelineView(Lines, can_focus=True):
    """The lanes of as many devices as there is room for, the chosen one among them."""

    HELP = """\
## Timeline

One of the traced steps, with the signs of the bars above: for each device what it computes, and below it its
collectives, `:` waiting and `=` in progress. **←** and **→** move a cursor that names the operation in both lanes,
**↑** and **↓** choose the device, **+** and **-** zoom in and out around the cursor, **,** and **.** move to earlier
and later times, **escape** shows the whole step. **enter** opens the collective under the cursor in Traffic. *mostly*:
several short operations, of which this one is the longest.
"""
    BINDING_GROUP_TITLE = "Timeline"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "timeline",
        [
            Binding("right", "move(1)", "Cursor", key_display="←→"),
            Binding("left", "move(-1)", "Cursor left", show=False),
            Binding("down", "choose(1)", "Device", key_display="↑↓"),
            Binding("up", "choose(-1)", "Device before", show=False),
            Binding("plus", "zoom(0.5)", "Zoom", key_display="+-"),
            Binding("minus", "zoom(2)", "Zoom out", show=False),
            Binding("full_stop", "pan(1)", "Pan", key_display=",."),
            Binding("comma", "pan(-1)", "Pan back", show=False),
            Binding("escape", "reset", "Whole step", show=False),
            Binding("enter", "open", "Traffic", show=False),
        ],
    )

    class Opened(Message):
        """The user wants to see this collective in Traffic."""

        def __init__(self, operation: OperationTime) -> None:
            super().__init__()
            self.operation = operation

    def __init__(self) -> None:
        super().__init__()
        self.breakdown: StepBreakdown | None = None
        self.devices: list[DeviceLanes] = []
        self.chosen = 0
        """Index of the chosen device."""
        self.window = (0, TICKS)
        self.cursor = 0.0
        """Ticks."""

    def show_breakdown(self, breakdown: StepBreakdown) -> None:
        """Shows the timeline of another breakdown, from its beginning."""
        if breakdown is self.breakdown:
            return
        self.breakdown = breakdown
        self.devices = (
            [device_lanes(breakdown, each) for each in breakdown.timeline.devices] if breakdown.timeline else []
        )
        self.chosen = min(self.chosen, max(0, len(self.devices) - 1))
        self.window = (0, TICKS)
        self.cursor = next((span.begin for device in self.devices[self.chosen :] for span in device.work), 0.0)
        self.draw()

    @property
    def columns(self) -> int:
        return max(1, self.size.width - LABEL_WIDTH)

    @property
    def per_cell(self) -> float:
        return (self.window[1] - self.window[0]) / self.columns

    def draw(self) -> None:
        timeline = self.breakdown.timeline if self.breakdown else None
        if timeline is None or not self.devices:
            set_titles(self, "timeline")
            self.show([Content("This breakdown has no timeline.")])
            return
        took = formatting.seconds(timeline.seconds)
        is_predicted = self.breakdown and self.breakdown.predicted_for
        set_titles(
            self, f"a step of {took}, predicted" if is_predicted else f"step {timeline.step:,}, which took {took}"
        )
        rows = max(1, (self.size.height - BELOW) // 2)
        first = max(0, min(self.chosen - rows // 2, len(self.devices) - rows))
        lines: list[Content] = []
        for at, device in enumerate(self.devices[first : first + rows], first):
            mark, cursor = ("▸", self.cell) if at == self.chosen else (" ", None)
            for label, lane in ((f"{mark}{device.device}", device.work), ("", device.collectives)):
                lines.append(lane_line(label, lane, self.window, self.columns, cursor))
        lines.append(axis(self.window, timeline.seconds / TICKS, self.columns, self.cell))
        for name, span in zip(("compute", "comm"), self.under_cursor(), strict=True):
            lines.append(Content.assemble((f"{name:<{LABEL_WIDTH}}", "$text-muted"), in_words(span, timeline)))
        self.show(lines)

    @property
    def cell(self) -> int:
        return max(0, min(self.columns - 1, int((self.cursor - self.window[0]) / self.per_cell)))

    def under_cursor(self) -> tuple[Shown | None, Shown | None]:
        begin = self.window[0] + self.cell * self.per_cell
        device = self.devices[self.chosen]
        lanes = (device.work, device.collectives)
        work, collective = (widest(lane, begin, begin + self.per_cell)[0] for lane in lanes)
        return work, collective

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset and offset.x >= LABEL_WIDTH:
            self.put_cursor(self.window[0] + (offset.x - LABEL_WIDTH + 0.5) * self.per_cell)

    def put_cursor(self, tick: float) -> None:
        first, last = self.window
        self.cursor = max(first, min(tick, last - self.per_cell / 2))
        self.draw()

    def action_move(self, cells: int) -> None:
        self.put_cursor(self.window[0] + (self.cell + cells + 0.5) * self.per_cell)

    def action_choose(self, by: int) -> None:
        self.chosen = max(0, min(self.chosen + by, len(self.devices) - 1))
        self.draw()

    def action_zoom(self, factor: float) -> None:
        length = (self.window[1] - self.window[0]) * factor
        self.show_window(self.cursor - length / 2, length)

    def action_pan(self, direction: int) -> None:
        first, last = self.window
        self.show_window(first + direction * (last - first) / 4, last - first)

    def show_window(self, first: float, length: float) -> None:
        whole = round(max(LEAST, min(length, TICKS)))
        begin = round(max(0, min(first, TICKS - whole)))
        self.window = (begin, begin + whole)
        self.put_cursor(self.cursor)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "reset" or self.window != (0, TICKS)

    def action_reset(self) -> None:
        self.show_window(0, TICKS)

    def action_open(self) -> None:
        _, collective = self.under_cursor() if self.devices else (None, None)
        if collective and collective.operation:
            self.post_message(self.Opened(collective.operation))


LABEL_WIDTH = 8
"""Cells of the device's name before a lane."""
AXIS_STYLE = "$text-muted"
CURSOR_STYLE = "$background on $foreground"
UNLISTED = "other"
"""The part of operations that the breakdown does not list."""


def lane_line(label: str, lane: Sequence[Shown], window: tuple[int, int], columns: int, cursor: int | None) -> Content:
    """Returns one lane. `window`: the ticks that are shown. `cursor`: the cell under the cursor; None for none."""
    each = (window[1] - window[0]) / columns
    cells = [_cell(lane, window[0] + at * each, window[0] + (at + 1) * each) for at in range(columns)]
    if cursor is not None:
        cells[cursor] = cells[cursor][0], CURSOR_STYLE
    runs = [("".join(sign for sign, _ in same), style) for style, same in groupby(cells, key=lambda cell: cell[1])]
    return Content.assemble((f"{label:<{LABEL_WIDTH}}", AXIS_STYLE), *runs)


def axis(window: tuple[int, int], tick: float, columns: int, cursor: int) -> Content:
    """Returns the line with the times at both ends of the window, and a mark below the cursor. `tick`: its seconds."""
    left, right = (formatting.seconds(end * tick) if end else "0" for end in window)
    room = max(0, columns - len(left) - len(right))
    cells = list(left + " " * room + right)[:columns]
    if len(left) < cursor < columns - len(right):
        cells[cursor] = "▲"
    return Content.styled(" " * LABEL_WIDTH + "".join(cells), AXIS_STYLE)


def _cell(lane: Sequence[Shown], begin: float, end: float) -> tuple[str, str]:
    """The sign and style of a cell: of the span that takes most of it. Work has to take half of the cell."""
    span, taken = widest(lane, begin, end)
    if span is None or (taken < 0.5 and _part(span) not in ("waiting", "exposed")):
        return " ", ""
    return PARTS[_part(span)]


def _part(span: Shown) -> str:
    if span.is_waiting:
        return "waiting"
    part = span.operation.part if span.operation else UNLISTED
    return NAMES.get(part, part if part in PARTS else "exposed")


def device_lanes(breakdown: StepBreakdown, device: DeviceTimeline) -> DeviceLanes:
    waiting = _decoded(breakdown, device.waiting, True)
    collectives = sorted([*waiting, *_decoded(breakdown, device.collectives)], key=lambda span: span.begin)
    return DeviceLanes(device.device, _decoded(breakdown, device.work), collectives)


def widest(lane: Sequence[Shown], begin: float, end: float) -> tuple[Shown | None, float]:
    """Returns the span that takes most of a range of ticks, and the part of the range that spans take together."""
    at = max(0, bisect_right(lane, begin, key=lambda span: span.begin) - 2)
    best, most, total = None, 0.0, 0.0
    for span in lane[at:]:
        if span.begin >= end:
            break
        taken = min(span.end, end) - max(span.begin, begin)
        if taken > 0:
            total += taken
            best, most = (span, taken) if taken > most else (best, most)
    return best, total / (end - begin)


def in_words(span: Shown | None, timeline: Timeline) -> str:
    """Returns a span as text: `fusion.12, 0.4 ms, at 3.2 ms, blocks/mlp, model.py:93`; `nothing` for a gap."""
    if span is None:
        return "nothing"
    tick = timeline.seconds / TICKS
    name = _name(span.operation) if span.operation else "an operation that is not listed"
    waiting, mostly = "waiting for " * span.is_waiting, "mostly " * span.is_merged
    about = [f"{waiting}{mostly}{name}", formatting.seconds((span.end - span.begin) * tick)]
    about.append(f"at {formatting.seconds(span.begin * tick)}")
    if span.operation:
        about += filter(None, (span.operation.module, formatting.short_source(span.operation.source)))
    return ", ".join(about)


def _name(operation: OperationTime) -> str:
    """`fusion.12`, `all-reduce.3 over model`."""
    _, over, axes = operation.part.partition(" over ")
    return f"{operation.name}{over}{axes}"


def _decoded(breakdown: StepBreakdown, flat: Sequence[int], is_waiting: bool = False) -> list[Shown]:
    spans: list[Shown] = []
    until = 0
    for gap, length, at in zip(flat[::3], flat[1::3], flat[2::3], strict=False):
        begin, until = until + gap, until + gap + length
        index = -2 - at if at < -1 else at
        operation = breakdown.operations[index] if 0 <= index < len(breakdown.operations) else None
        spans.append(Shown(begin, until, operation, at < -1, is_waiting))
    return spans
