"""Draws losses by step as text: braille dots, axes, and a dotted line with the preset's name at each switch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from textual.content import Content

from ..state.losses import Evaluations, Losses
from .plot_axis import LABEL_WIDTH, log_scale, scale, scaled

MIN_STEPS = 20
"""Least number of steps that the horizontal axis shows."""
EDGES = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
"""The right edge is one of these times a power of ten, so that columns do not move at every step."""
SMOOTHED_FRACTION = 0.04
"""A smoothed loss is the mean over this fraction of the shown steps."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character above U+2800, by row and column."""
CELLS = (" ", *map(chr, range(0x2801, 0x2900)))
"""The characters by their bits; a space instead of the empty braille character."""
UNMARKED = frozenset((*CELLS, "┊"))
"""The characters of curves and of lines at switches: letters and names may cover them."""
CURVE_STYLE, MARK_STYLE, NAME_STYLE, AXIS_STYLE = "$primary-lighten-2", "$foreground 30%", "$accent", "$text-muted"

Mark = tuple[int, str]
"""Steps done before a switch, and the name of the preset after it."""


@dataclass(frozen=True)
class Curve:
    """The held-out losses of this run, or the losses of another one, drawn under the losses of its steps."""

    name: str
    """The run's name, for the legend, or `eval`."""
    losses: Losses | Evaluations
    letter: str
    """Marks the curve's end and its entry in the legend: a colour alone may not be seen."""
    style: str
    """Colour of curve and letter."""
    is_scaled: bool = False
    """Whether it has another unit, and so a vertical scale of its own: it is as high as the chart."""


@dataclass(frozen=True)
class Plot:
    """A drawing of losses."""

    losses: Losses
    others: Sequence[Curve] = ()
    """The held-out losses, and losses of other runs."""
    marks: Sequence[Mark] = ()
    """The one at step 0 names the first preset and has no line."""
    window: tuple[int, int] | None = None
    """The first step shown and the one after the last; None for all steps."""
    cursor: int | None = None
    """The step under the cursor; None for no cursor."""
    is_log: bool = False
    """Whether the vertical axis is logarithmic."""
    is_smooth: bool = False
    """Whether each loss is a mean over its neighbours."""

    @property
    def steps(self) -> int:
        return max(len(self.losses), *(len(curve.losses) for curve in self.others), 0)

    @property
    def reach(self) -> int:
        first, edge = self.bounds
        return int((edge - first) * SMOOTHED_FRACTION / 2) if self.is_smooth else 0

    @property
    def bounds(self) -> tuple[int, int]:
        return self.window or (0, right_edge(self.steps))


@dataclass
class Canvas:
    """The characters of a chart without its axes, and their styles by row and column."""

    text: list[list[str]]
    styles: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])

    def add_curve(self, curve: Sequence[Sequence[str]], style: str) -> None:
        for row, cells in enumerate(curve):
            for column, cell in enumerate(cells):
                if cell != " ":
                    self.text[row][column], self.styles[row, column] = cell, style

    def put(self, row: int, column: int, text: str, style: str, over_curve: bool) -> None:
        """Writes `text` into a row, between the dots of the curve or over them."""
        for at, character in enumerate(text, column):
            if over_curve or self.text[row][at] == " ":
                self.text[row][at], self.styles[row, at] = character, style

    def line(self, row: int, label: str) -> Content:
        axis = f"{label:>{LABEL_WIDTH - 2}}".ljust(LABEL_WIDTH - 1) + ("┤" if label else "│")
        characters = self.text[row]
        runs = [(axis, AXIS_STYLE)]
        for style, same in groupby(range(len(characters)), lambda at: self.styles.get((row, at), CURVE_STYLE)):
            runs.append(("".join(characters[at] for at in same), style))
        return Content.assemble(*runs, strip_control_codes=False)


def draw_plot(plot: Plot, width: int, height: int) -> list[Content]:
    """Returns a line for each row of the chart: one if there is nothing to draw, none if there is no room."""
    legend = _legend(plot.others, width)[: height // 4]
    columns, rows = width - LABEL_WIDTH, height - 1 - len(legend)
    if columns < 4 or rows < 2:
        return []
    own = _points(plot, plot.losses, columns * 2)
    others = [(curve, _points(plot, curve.losses, columns * 2)) for curve in plot.others]
    points = [*own, *chain.from_iterable(found for curve, found in others if not curve.is_scaled)]
    if not points:
        return [Content.styled("no finite loss" if plot.steps else "no step done yet", AXIS_STYLE).truncate(width)]
    low, high, ticks = log_scale(points) if plot.is_log else scale(points, max(2, rows // 4))
    others = [(curve, scaled(found, low, high) if curve.is_scaled else found) for curve, found in others]
    canvas = Canvas([[" "] * columns for _ in range(rows)])
    for curve, found in reversed(others):
        canvas.add_curve(_curve(found, low, high, columns, rows), curve.style)
    canvas.add_curve(_curve(own, low, high, columns, rows), CURVE_STYLE)
    for curve, found in others:
        _draw_letter(canvas, curve, [(_row(value, low, high, rows * 4) // 4, x // 2) for x, value in found])
    _draw_marks(canvas, plot, columns)
    labels = {_row(value, low, high, rows * 4) // 4: text for value, text in ticks}
    return [*legend, *(canvas.line(row, labels.get(row, "")) for row in range(rows)), _step_axis(plot, columns)]


def right_edge(steps: int) -> int:
    """Returns the step at the right end of the axis: the smallest round number that is at least `steps`."""
    steps = max(steps, MIN_STEPS)
    power = 10 ** (len(str(steps)) - 1)
    return next(int(edge * power) for edge in (*EDGES, 10) if edge * power >= steps)


def mean_loss(losses: Losses | Evaluations, begin: int, end: int, reach: int = 0) -> float | None:
    """Returns the mean loss of the steps in `[begin, end)` and `reach` steps around them; None if none is finite."""
    return losses.mean(max(0, begin - reach), min(len(losses), end + reach))


def _points(plot: Plot, losses: Losses | Evaluations, dots: int) -> list[tuple[int, float]]:
    """Returns (dot column, mean loss of its steps), without columns that have no finite loss."""
    points: list[tuple[int, float]] = []
    first, edge = plot.bounds
    begin, last = first, min(edge, len(losses))
    while begin < last:
        column = (begin - first) * dots // (edge - first)
        end = min(last, max(begin + 1, first - (-(column + 1) * (edge - first) // dots)))
        value = mean_loss(losses, begin, end, plot.reach)
        if value is not None and not (plot.is_log and value <= 0):
            points.append((column, math.log10(value) if plot.is_log else value))
        begin = end
    return points


def _curve(points: Sequence[tuple[int, float]], low: float, high: float, columns: int, rows: int) -> list[list[str]]:
    """Returns the curve's characters by row and column. Neighbouring points are joined by lines."""
    bits = [[0] * columns for _ in range(rows)]
    previous: tuple[int, int] | None = None
    for x, value in points:
        y = _row(value, low, high, rows * 4)
        for dot_x, dot_y in _segment(previous or (x, y), (x, y)):
            bits[dot_y // 4][dot_x // 2] |= DOTS[dot_y % 4][dot_x % 2]
        previous = x, y
    return [[CELLS[cell] for cell in row] for row in bits]


def _draw_letter(canvas: Canvas, curve: Curve, cells: Sequence[tuple[int, int]]) -> None:
    for row, column in reversed(cells):
        if canvas.text[row][column] in UNMARKED:
            canvas.put(row, column, curve.letter, f"bold {curve.style}", over_curve=True)
            return


def _legend(curves: Sequence[Curve], width: int) -> list[Content]:
    """Returns the letter, name and last loss of each curve, in as many lines as they need: `A nano-1 2.318`."""
    lines: list[Content] = []
    for curve in curves:
        last = mean_loss(curve.losses, len(curve.losses) - 1, len(curve.losses)) if curve.losses else None
        loss = "–" if last is None else f"{last:.4g}" + (" (own scale)" if curve.is_scaled else "")
        entry = Content.assemble((f"{curve.letter} ", f"bold {curve.style}"), curve.name, (f" {loss}", "$text-muted"))
        if lines and lines[-1].cell_length + 3 + entry.cell_length <= width:
            lines[-1] = Content.assemble(lines[-1], "   ", entry)
        else:
            lines.append(entry)
    return lines


def _segment(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = start, end
    length = max(x1 - x0, abs(y1 - y0), 1)
    right, down = (x1 - x0) / length, (y1 - y0) / length
    return [(int(x0 + 0.5 + right * t), int(y0 + 0.5 + down * t)) for t in range(length + 1)]


def _row(value: float, low: float, high: float, dots: int) -> int:
    return min(dots - 1, max(0, round((high - value) / (high - low) * (dots - 1))))


def column_of(step: int, bounds: tuple[int, int], columns: int) -> int:
    first, edge = bounds
    return min(columns - 1, max(0, (step - first) * columns // (edge - first)))


def _draw_marks(canvas: Canvas, plot: Plot, columns: int) -> None:
    """Draws a line at each switch and at the cursor, then the names of the presets, each where it covers no other."""
    first, edge = plot.bounds
    shown = [mark for mark in plot.marks if first <= mark[0] < edge]
    if before := [mark for mark in plot.marks if mark[0] < first]:
        shown.insert(0, (first, before[-1][1]))  # the preset that was active at the left edge
    for step, _ in shown:
        if step > first:
            _draw_line(canvas, column_of(step, plot.bounds, columns), "┊", MARK_STYLE)
    if plot.cursor is not None:
        _draw_line(canvas, column_of(plot.cursor, plot.bounds, columns), "│", NAME_STYLE)
    for step, name in shown:
        _draw_name(canvas, column_of(step, plot.bounds, columns) + (step > first), name)


def _draw_line(canvas: Canvas, column: int, character: str, style: str) -> None:
    for row in range(len(canvas.text)):
        canvas.put(row, column, character, style, over_curve=False)


def _draw_name(canvas: Canvas, column: int, name: str) -> None:
    """Writes a name to the right of its line, or to the left at the right edge, in the first row where it fits.

    A row in which it covers a part of the curve is the second choice; a name longer than the chart is left out.
    """
    columns = len(canvas.text[0])
    start = column if column + len(name) <= columns else column - 1 - len(name)
    if start < 0:
        return
    cells = range(max(0, start - 1), min(columns, start + len(name) + 1))
    free = [row for row in range(len(canvas.text)) if all(canvas.text[row][at] in UNMARKED for at in cells)]
    clear = [row for row in free if all(canvas.text[row][at] in " ┊" for at in cells)]
    for row in (clear or free)[:1]:
        canvas.put(row, start, name, NAME_STYLE, over_curve=True)


def _step_axis(plot: Plot, columns: int) -> Content:
    first, edge = plot.bounds
    steps = edge - first
    text = f"{first:,}".rjust(LABEL_WIDTH)
    needed = len(f"{edge:,}") + len(text) - LABEL_WIDTH
    parts = next((parts for parts in (4, 5, 2, 1) if steps % parts == 0 and columns // parts > needed), 1)
    for part in range(1, parts + 1):
        text += f"{first + steps * part // parts:,}".rjust(LABEL_WIDTH + columns * part // parts - len(text))
    return Content.styled(text[: LABEL_WIDTH + columns], AXIS_STYLE)
