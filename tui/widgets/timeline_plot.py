"""Draws a lane of a timeline as text: a sign for the part of the step that takes most of each cell."""

from collections.abc import Sequence
from itertools import groupby

from textual.content import Content

from ...engine.base import figures
from ..state.timeline_spans import Shown, widest
from .step_bar import NAMES, PARTS

LABEL_WIDTH = 8
"""Cells of the device's name before a lane."""
AXIS_STYLE = "$foreground 60%"
CURSOR_STYLE = "$background on $foreground"
UNLISTED = "other"
"""The part of operations that the account does not list."""


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
    left, right = (figures.seconds(end * tick) if end else "0" for end in window)
    room = max(0, columns - len(left) - len(right))
    cells = list(left + " " * room + right)[:columns]
    if len(left) < cursor < columns - len(right):
        cells[cursor] = "▲"
    return Content.styled(" " * LABEL_WIDTH + "".join(cells), AXIS_STYLE)


def _cell(lane: Sequence[Shown], begin: float, end: float) -> tuple[str, str]:
    """The sign and style of a cell: of the span that takes most of it. Work has to take half of the cell."""
    span, taken = widest(lane, begin, end)
    if span is None or (taken < 0.5 and not _is_collective(span)):
        return " ", ""
    return PARTS[_part(span)]


def _is_collective(span: Shown) -> bool:
    return span.is_waiting or _part(span) == "exposed"


def _part(span: Shown) -> str:
    if span.is_waiting:
        return "waiting"
    part = span.operation.part if span.operation else UNLISTED
    return NAMES.get(part, part if part in PARTS else "exposed")
