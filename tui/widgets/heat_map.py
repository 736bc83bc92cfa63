"""Rows of values as a heat map: how far each value is from the row's reference, by colour, and by figures or bars."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from textual.content import Content

from ...engine.base.formatting import BARS, number
from ...engine.wire.number_events import STANDS_OUT

FAINT = "$text-muted"
DIGITS = 2
PADDING = 2
"""Cells around a figure, of which the right one may be a mark."""
MAX_CELL_WIDTH, MAX_BAR_WIDTH = 9, 3
REFERENCE_WIDTH = 9
MAX_LINES = 3
"""Lines of a row where there is room."""
MARK = "!"
"""Beside or in place of a value that has elements that are not finite."""
LEAST_TINT = 1 / 6
"""Deviations that are smaller, as a part of the largest that is told apart, have no colour, and the middle bar."""


@dataclass(frozen=True)
class HeatRow:
    """One row: a value in each column, and what they are compared with."""

    name: str
    values: Sequence[float]
    reference: float
    wrong: frozenset[int] = field(default_factory=frozenset[int])
    """Columns whose value leaves out elements that are not finite."""
    is_chosen: bool = False

    def deviation(self, at: int) -> float:
        """Returns from -1 to 1: the logarithm of value ÷ reference; ±1 if it stands out."""
        value = self.values[at]
        if not self.reference:
            return 0.0
        if value <= 0:
            return -1.0
        return max(-1.0, min(1.0, math.log(value / self.reference) / math.log(STANDS_OUT)))

    def strangeness(self, at: int) -> tuple[bool, float]:
        return at in self.wrong, abs(self.deviation(at))


@dataclass(frozen=True)
class _Frame:
    """How a map is divided among the cells of its width."""

    names: int
    """Cells of the rows' names."""
    columns: Sequence[range]
    """The columns in each cell of the map."""
    cell: int
    """Its width."""
    has_figures: bool

    @property
    def heading(self) -> str:
        if self.has_figures:
            return "".join(f"{column[0]:>{self.cell - 1}} " for column in self.columns)
        return _ticks(self.columns, self.cell)


def draw_heat_map(
    title: str, rows: Sequence[HeatRow], width: int, height: int = 0, reference: str = ""
) -> list[Content]:
    """Returns lines of `width` cells: the numbers of the columns, then the rows, as high as fits `height`.

    `title`: what a column is. Columns that do not fit are folded: a cell then shows the strangest of its values.
    `reference`: name of what values are compared with, to show it beside bars; empty if it is clear.
    """
    if not rows:
        return []
    frame = _frame(title, rows, width, REFERENCE_WIDTH * bool(reference))
    shows_reference = bool(reference) and not frame.has_figures
    heading = frame.heading + (f"{reference:>{REFERENCE_WIDTH}}" if shows_reference else "")
    lines = [Content.styled(f"{title:<{frame.names}}{heading}", FAINT)]
    each = max(1, min(MAX_LINES, (height - 1) // len(rows))) if frame.has_figures else 1
    draw = _figure if frame.has_figures else _bar
    for row in rows:
        places = [max(columns, key=row.strangeness) for columns in frame.columns]
        cells = [(draw(row, at, frame.cell), _style(row, at, frame.has_figures)) for at in places]
        figure = f"{number(row.reference):>{REFERENCE_WIDTH}}" if shows_reference else ""
        name = f"{row.name:<{frame.names}}"
        text = Content.assemble((name, "bold" if row.is_chosen else FAINT), *cells, figure)
        blank = Content.assemble(" " * frame.names, *((" " * frame.cell, style) for _, style in cells))
        lines += [text if line == (each - 1) // 2 else blank for line in range(each)]
    return lines


def _frame(title: str, rows: Sequence[HeatRow], width: int, reserved: int) -> _Frame:
    """`reserved`: cells that bars leave free at the right."""
    names = max(len(title), *(len(row.name) for row in rows)) + 1
    count, room = len(rows[0].values), max(1, width - names)
    cell = max(len(number(value, DIGITS)) for row in rows for value in row.values) + PADDING
    if cell * count <= room:
        return _Frame(names, [range(at, at + 1) for at in range(count)], min(MAX_CELL_WIDTH, room // count), True)
    room = max(1, room - reserved)
    fold = -(-count // room)
    columns = [range(at, min(at + fold, count)) for at in range(0, count, fold)]
    return _Frame(names, columns, max(1, min(MAX_BAR_WIDTH, room // len(columns))), False)


def folded(rows: Sequence[HeatRow], most: int) -> list[HeatRow]:
    """Returns at most `most` rows, each of which has the strangest value of several in each column."""
    fold = max(1, -(-len(rows) // max(1, most)))
    groups = [rows[begin : begin + fold] for begin in range(0, len(rows), fold)]
    return [_strangest_of(group) if len(group) > 1 else group[0] for group in groups]


def _strangest_of(rows: Sequence[HeatRow]) -> HeatRow:
    count = len(rows[0].values)
    found = [max(rows, key=lambda row: row.strangeness(at)) for at in range(count)]
    return HeatRow(
        f"{rows[0].name}…{rows[-1].name.rpartition(' ')[2]}",
        [row.values[at] for at, row in enumerate(found)],
        rows[0].reference,
        frozenset(at for at, row in enumerate(found) if at in row.wrong),
    )


def _figure(row: HeatRow, at: int, width: int) -> str:
    return f"{number(row.values[at], DIGITS):>{width - 1}}{MARK if at in row.wrong else ' '}"


def _bar(row: HeatRow, at: int, width: int) -> str:
    """Returns a bar: the middle one near the reference, the highest for a value that stands out."""
    deviation, middle = row.deviation(at), (len(BARS) - 1) // 2
    bar = BARS[round(middle * (deviation + 1)) if deviation < 1 else -1] if row.values[at] else "0"
    return (MARK if at in row.wrong else bar) * width


def _style(row: HeatRow, at: int, is_figure: bool) -> str:
    """Returns the style of a cell: the background of a figure, or the colour of a bar, says how far it deviates."""
    if at in row.wrong:
        return "bold reverse $error"
    deviation = row.deviation(at)
    if abs(deviation) < LEAST_TINT:
        return "" if is_figure else "$foreground 40%"
    colour = "$warning" if deviation > 0 else "$primary"
    share = 100 * abs(deviation)
    return f"on {colour} {0.6 * share:.0f}%" if is_figure else f"{colour} {40 + 0.6 * share:.0f}%"


def _ticks(columns: Sequence[range], cell: int) -> str:
    """Returns the numbers of some columns, each where its cell begins."""
    line = ""
    for place, column in enumerate(columns):
        at, text = place * cell, str(column[0])
        if (not line or at >= len(line) + 4) and at + len(text) <= len(columns) * cell:
            line = f"{line:<{at}}{text}"
    return f"{line:<{len(columns) * cell}}"
