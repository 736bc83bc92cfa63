"""The figures that matter most, large where there is room, each with its course over the last steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.renderables.digits import DIGITS, DIGITS3X3

from ...engine.base import formatting
from ..state.losses import Losses
from ..state.run_state import RunState
from .lines import StateLines

SPARK_CELLS = 10
LARGE_ROWS = 4
"""Rows of a large figure: three of digits, and its name with the course."""
MIN_GAP = 2


@dataclass(frozen=True)
class Figure:
    """A figure and its course."""

    name: str
    value: str
    """Digits, of which large ones are drawn."""
    unit: str = ""
    course: Sequence[float] = ()
    """Values over time, the last one newest; empty for none."""


class Headline(StateLines):
    """Loss, gradient norm, rate, step time; model FLOP utilisation on a known chip, time left if the end is known."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        found = headline(state)
        return large_lines(found, width) if self.size.height >= LARGE_ROWS else [small_line(found, width)]


def headline(state: RunState) -> list[Figure]:
    """Returns the figures that are known, the most important first."""
    seconds, rate, used = state.seconds_per_step, state.tokens_per_second, state.flop_utilisation
    if not seconds or not state.losses:
        return []
    time, unit = formatting.seconds(seconds).rsplit(" ", 1)
    times = [sum(state.recent[at] for at in range(*part)) for part in parts(len(state.recent), SPARK_CELLS)]
    found: list[Figure] = []
    if state.is_loss_nonfinite or not math.isnan(state.losses[-1]):  # a program may have none
        found.append(Figure("loss", scalar(state.losses[-1]), "", course(state.losses)))
    if norms := state.curves.get("grad_norm"):
        found.append(Figure("grad norm", scalar(norms[-1]), "", course(norms)))
    if rate:
        rates = [1 / seconds for seconds in times if seconds]
        found.append(Figure(f"{state.counted}/s", formatting.three_digits(rate), "", rates))
    found.append(Figure("step", time, unit, times))
    if used is not None:
        found.append(Figure("MFU", f"{used * 100:.0f}", "%"))
    if left := state.seconds_left:
        minutes, seconds = divmod(round(left), 60)
        found.append(Figure("left", f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"))
    return found


def scalar(value: float) -> str:
    """Formats a loss or a norm: `2.431`, `4.1e-5`."""
    return formatting.number(value, 2) if 0 < abs(value) < 0.001 else f"{value:.3f}"


def course(curve: Losses) -> list[float]:
    """Returns means of the curve for a sparkline, without what is not finite."""
    means = (curve.mean(begin, end) for begin, end in parts(len(curve), SPARK_CELLS))
    return [mean for mean in means if mean is not None]


def parts(count: int, most: int) -> list[tuple[int, int]]:
    """Returns the bounds of at most `most` parts of equal size, the last of which ends at `count`."""
    each = max(1, count // most)
    number = min(most, count // each) if count else 0
    return [(end - each, end) for end in range(count - (number - 1) * each, count + 1, each)] if number else []


def spark(course: Sequence[float]) -> str:
    """Returns a bar for each value, scaled between the least and the greatest: `█▆▄▃▂▁`."""
    if len(course) < 2:
        return ""
    return formatting.bars(course, min(course), max(course))


def small_line(found: Sequence[Figure], width: int) -> Content:
    """Returns the figures in one line, `loss 2.431 ▇▅▃▂   tokens/s 9,640 ▅▆▆`: where they do not fit, without courses,
    and then as many as do."""
    lines = [_small_line(found, True), *(_small_line(found[:count], False) for count in range(len(found), 0, -1))]
    return next((line for line in lines if line.cell_length <= width), lines[-1])


def _small_line(found: Sequence[Figure], with_course: bool) -> Content:
    return Content("   ").join(_small(figure, with_course) for figure in found)


def _small(figure: Figure, with_course: bool) -> Content:
    text = f"{figure.value} {figure.unit}".rstrip()
    parts = [(f"{figure.name} ", "$text-muted"), (text, "bold")]
    return Content.assemble(*parts, (f" {spark(figure.course)}" if with_course else "", "$primary"))


def large_lines(found: Sequence[Figure], width: int) -> list[Content]:
    """Returns three rows of large digits and one of names and courses; as many figures as fit."""
    rows = [Content()] * LARGE_ROWS
    for figure in found:
        block = _large(figure)
        cells = max(line.cell_length for line in block) + MIN_GAP
        if rows[0].cell_length + cells > width:
            break
        rows = [
            Content.assemble(row, line, " " * (cells - line.cell_length)) for row, line in zip(rows, block, strict=True)
        ]
    return rows


def _large(figure: Figure) -> list[Content]:
    digits = [Content.styled(row, "bold") for row in large_digits(figure.value)]
    digits[-1] = Content.assemble(digits[-1], (f" {figure.unit}", "$text-muted"))
    return [*digits, Content.assemble((f"{figure.name} ", "$text-muted"), (spark(figure.course), "$primary"))]


def large_digits(text: str) -> list[str]:
    """Returns three rows of characters that draw `text` with Textual's glyphs, of equal width."""
    rows = ["", "", ""]
    for character in text:
        at = DIGITS.find(character.upper())
        glyph = DIGITS3X3[3 * at : 3 * at + 3] if at >= 0 else ["", "", character]
        width = max(map(len, glyph))
        rows = [row + line.ljust(width) for row, line in zip(rows, glyph, strict=True)]
    return rows
