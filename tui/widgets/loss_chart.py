"""The loss over the steps, in braille dots, with a mark at each switch."""

import math
from collections.abc import Sequence

from textual.content import Content

from ..state.losses import Losses
from ..state.run_state import RunState
from .lines import Lines, entitle

LABEL_WIDTH = 7
SMALLEST_EDGE = 20
"""Steps that the axis shows at least."""
EDGES = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
"""The right edge is one of these times a power of ten, so that columns stand still while steps come in."""
TICKS = (1, 2, 5)
LOG_TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the braille cell at U+2800 by row and column."""
CELLS = (" ", *map(chr, range(0x2801, 0x2900)))

NATS = ", nats per token"
CURVE_STYLE, MARK_STYLE, NAME_STYLE = "$primary-lighten-2", "$foreground 30%", "$accent"

Mark = tuple[int, str]
"""Steps done before a switch, and the preset after it."""


class LossChart(Lines):
    def on_mount(self) -> None:
        self.logarithmic = False
        self.losses = Losses()
        self.marks: list[Mark] = []
        self.unit = NATS

    def show_state(self, state: RunState) -> None:
        self.losses = state.losses
        self.marks = state.marks
        self.unit = "" if state.watched else NATS
        self.draw()

    def toggle_logarithmic(self) -> None:
        self.logarithmic = not self.logarithmic
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        entitle(self, f"loss{self.unit}{' (log axis)' if self.logarithmic else ''}")
        self.show(draw_chart(self.losses, self.marks, self.size.width, self.size.height, self.logarithmic))


def draw_chart(
    losses: Losses, marks: Sequence[Mark], width: int, height: int, logarithmic: bool = False
) -> list[Content]:
    """One line of content for each row; fewer where there is nothing to draw or no room for it."""
    columns, rows = width - LABEL_WIDTH, height - 1
    if columns < 4 or rows < 2:
        return []
    edge = right_edge(len(losses))
    points = _points(losses, edge, columns * 2, logarithmic)
    if not points:
        return [Content.styled("no step done yet", "$foreground 60%")]
    low, high, ticks = _log_scale(points) if logarithmic else _scale(points, max(2, rows // 4))
    dots = _plot(points, low, high, columns, rows)
    labels = {_row(value, low, high, rows * 4) // 4: text for value, text in ticks}
    lines = [
        _line(dots[row], labels.get(row, ""), [(_column(step, edge, columns), name) for step, name in marks], row == 0)
        for row in range(rows)
    ]
    return [*lines, _axis(edge, columns)]


def right_edge(steps: int) -> int:
    """The smallest nice number of steps that is not below `steps`."""
    steps = max(steps, SMALLEST_EDGE)
    power = 10 ** (len(str(steps)) - 1)
    return next(int(edge * power) for edge in (*EDGES, 10) if edge * power >= steps)


def _points(losses: Losses, edge: int, dots: int, logarithmic: bool) -> list[tuple[int, float]]:
    """(dot column, value): the mean of the steps that fall on a column; none where all of them are not finite."""
    points: list[tuple[int, float]] = []
    begin = 0
    while begin < len(losses):
        column = begin * dots // edge
        end = min(len(losses), max(begin + 1, -(-(column + 1) * edge // dots)))
        value = losses.mean(begin, end)
        if value is not None and not (logarithmic and value <= 0):
            points.append((column, math.log10(value) if logarithmic else value))
        begin = end
    return points


def _scale(points: Sequence[tuple[int, float]], intervals: int) -> tuple[float, float, list[tuple[float, str]]]:
    """Bounds at round numbers, and ticks at about `intervals` + 1 of them."""
    low, high = _bounds(points)
    power = 10 ** math.floor(math.log10((high - low) / intervals))
    step = next(tick * power for tick in (*TICKS, 10) if (high - low) / (tick * power) <= intervals)
    first, last = math.floor(low / step), math.ceil(high / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return first * step, last * step, [(n * step, f"{n * step:.{digits}f}") for n in range(first, last + 1)]


def _log_scale(points: Sequence[tuple[int, float]]) -> tuple[float, float, list[tuple[float, str]]]:
    low, high = _bounds(points)
    powers = range(math.floor(low) - 1, math.ceil(high) + 1)
    values = [tick * 10.0**power for power in powers for tick in LOG_TICKS]
    first = max(value for value in values if math.log10(value) <= low)
    last = min(value for value in values if math.log10(value) >= high)
    ticks = [(math.log10(value), f"{value:.3g}") for value in values if first <= value <= last]
    return math.log10(first), math.log10(last), ticks


def _bounds(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    least = max(abs(high) * 0.01, 1e-6)
    return (low, high) if high - low >= least else (low - least, high + least)


def _plot(points: Sequence[tuple[int, float]], low: float, high: float, columns: int, rows: int) -> list[list[int]]:
    """Braille bits by row and column; neighbouring points are joined."""
    cells = [[0] * columns for _ in range(rows)]
    previous: tuple[int, int] | None = None
    for x, value in points:
        y = _row(value, low, high, rows * 4)
        for dot_x, dot_y in _segment(previous or (x, y), (x, y)):
            cells[dot_y // 4][dot_x // 2] |= DOTS[dot_y % 4][dot_x % 2]
        previous = x, y
    return cells


def _segment(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = start, end
    length = max(x1 - x0, abs(y1 - y0), 1)
    right, down = (x1 - x0) / length, (y1 - y0) / length
    return [(int(x0 + 0.5 + right * t), int(y0 + 0.5 + down * t)) for t in range(length + 1)]


def _row(value: float, low: float, high: float, dots: int) -> int:
    return min(dots - 1, max(0, round((high - value) / (high - low) * (dots - 1))))


def _column(step: int, edge: int, columns: int) -> int:
    return min(columns - 1, step * columns // edge)


def _line(dots: Sequence[int], label: str, marks: Sequence[Mark], with_names: bool) -> Content:
    """One row: the curve over the marks, with the names of the presets in the first row."""
    text = [CELLS[bits] for bits in dots]
    styled: dict[int, str] = {}
    for index, (column, name) in enumerate(marks):
        end = marks[index + 1][0] if index + 1 < len(marks) else len(text)
        start, shown = _label(text, column, name) if with_names else (column, "┊")
        for at, character in enumerate(shown, start):
            if at < max(end, column + 1) and text[at] == " ":
                text[at], styled[at] = character, MARK_STYLE if character == "┊" else NAME_STYLE
    axis = "┤" if label else "│"
    runs = [(f"{label[: LABEL_WIDTH - 2]:>{LABEL_WIDTH - 2}} {axis}", "$foreground 60%")]
    begin = 0
    for at in sorted(styled):
        runs += [("".join(text[begin:at]), CURVE_STYLE), (text[at], styled[at])]
        begin = at + 1
    return Content.assemble(*runs, ("".join(text[begin:]), CURVE_STYLE), strip_control_codes=False)


def _label(text: Sequence[str], column: int, name: str) -> tuple[int, str]:
    """Where a mark's name begins: right of the mark, or left of it where the chart ends and there is room."""
    left = column - len(name)
    if column + len(name) >= len(text) and left >= 0 and all(character == " " for character in text[left:column]):
        return left, f"{name}┊"
    return column, f"┊{name}"


def _axis(edge: int, columns: int) -> Content:
    """Step numbers at equal parts of the axis, right-aligned under their place."""
    parts = next((parts for parts in (4, 5, 2, 1) if edge % parts == 0 and columns // parts > len(f"{edge:,}")), 1)
    text = "0".rjust(LABEL_WIDTH)
    for part in range(1, parts + 1):
        text += f"{edge * part // parts:,}".rjust(LABEL_WIDTH + columns * part // parts - len(text))
    return Content.styled(text[: LABEL_WIDTH + columns], "$foreground 60%")
