"""The memory of a step: the curve over the step, and the largest buffers at its peak."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from ...engine.base import formatting
from ...engine.wire.descriptions import PeakBuffer, PeakMemory
from ..state.step_words import curve_rows, moment
from ..state.tables import BUFFERS, by_source
from .lines import TALL, Lines, set_titles
from .table import Table

LOW_ROWS, TALL_ROWS = 3, 6
"""Lines of the curve in a low terminal, and in a tall one."""
SCALE_WIDTH = 9
"""Cells of the figures beside the curve."""


class MemoryAtPeak(Vertical):
    """The curve above a table of buffers. Both are predicted from the order of the compiled program."""

    DEFAULT_CSS = """
    MemoryAtPeak { height: 1fr; }
    MemoryAtPeak > Lines { padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.curve = MemoryCurve()
        self.table = Table()

    def compose(self) -> ComposeResult:
        yield self.curve
        yield self.table

    def show_peak(self, peak: PeakMemory, buffers: Sequence[PeakBuffer]) -> None:
        self.curve.show_peak(peak, TALL_ROWS if self.screen.size.height >= TALL else LOW_ROWS)
        rows = {str(at): buffer for at, buffer in enumerate(by_source(buffers))}
        self.table.show_columns(BUFFERS, rows)
        set_titles(self.table.rows, f"at the peak, {moment(peak)}")


class MemoryCurve(Lines):
    """Bytes that are live over the step, in the order of the program."""

    peak: PeakMemory | None = None

    def show_peak(self, peak: PeakMemory, rows: int) -> None:
        self.peak = peak
        self.styles.height = rows + 1 if peak.curve else 0
        self.draw()

    def draw(self) -> None:
        width, rows = self.size.width - SCALE_WIDTH, self.size.height - 1
        if self.peak is None or width < 1 or rows < 1:
            return
        drawn = curve_rows(self.peak, width, rows)
        scale = [formatting.size(self.peak.bytes), *[""] * (rows - 1)]
        lines = [
            Content.assemble((f"{mark:>{SCALE_WIDTH - 1}} ", "$text-muted"), (line, "$primary"))
            for mark, line in zip(scale, drawn, strict=True)
        ]
        self.show([*lines, Content.styled(_below(self.peak, len(drawn[0])), "$text-muted")])


def _below(peak: PeakMemory, width: int) -> str:
    words, at = f"peak at {formatting.percent(peak.at)}", round(peak.at * (width - 1))
    line = " " * at + f"▲ {words}"
    return " " * SCALE_WIDTH + (line if len(line) <= width else f"{words} ▲".rjust(at + 1))
