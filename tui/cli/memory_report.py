"""The table of what fills the memory at the peak of a step."""

from collections.abc import Sequence

from rich.table import Table

from ...engine.base import figures
from ...engine.wire.descriptions import PeakBuffer, PeakMemory
from ..state.step_words import coverage, curve_rows, moment
from ..state.tables import BUFFERS
from ..terminal.plain_table import table_of

CURVE_WIDTH = 60
"""Cells of the curve."""


def peak_table(name: str, peak: PeakMemory, buffers: Sequence[PeakBuffer], compiler: int | None) -> Table:
    """Returns the largest buffers at the peak of a step. `name`: the preset. `compiler`: its own figure of the peak;
    None if nothing is compiled."""
    return table_of(
        BUFFERS,
        buffers,
        title=f"{name}: largest buffers at the peak, predicted: {moment(peak)}",
        caption="\n".join([*_curve(peak), coverage(peak, buffers, compiler)]),
    )


def _curve(peak: PeakMemory) -> list[str]:
    """The memory over the step in one line, if it is known: from 0 to the peak."""
    return [f"over the step {line} up to {figures.size(peak.bytes)}" for line in curve_rows(peak, CURVE_WIDTH, 1)]
