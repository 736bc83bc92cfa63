"""The table of what fills the memory at the peak of a step."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.wire.descriptions import PeakBuffer, PeakMemory
from ..state.peak_words import coverage, curve_rows, held_by, lifetime, moment
from ..terminal.plain_table import plain_table, right

CURVE_WIDTH = 60
"""Cells of the curve."""


def peak_table(name: str, peak: PeakMemory, buffers: Sequence[PeakBuffer], compiler: int | None) -> Table:
    """Returns the largest buffers at the peak of a step. `name`: the preset. `compiler`: its own figure of the peak;
    None if nothing is compiled."""
    table = plain_table(
        Column("array or operation", overflow="fold"),
        "is",
        right("bytes"),
        right("padding"),
        Column("layout", overflow="fold"),
        right("live"),
        Column("source", overflow="fold"),
        title=f"{name}: largest buffers at the peak, predicted: {moment(peak)}",
        caption="\n".join([*_curve(peak), coverage(peak, buffers, compiler)]),
    )
    for buffer in buffers:
        table.add_row(
            Text(held_by(buffer)),
            buffer.kind,
            figures.size(buffer.bytes),
            figures.size(buffer.padding) if buffer.padding else "",
            Text(buffer.layout),
            lifetime(buffer),
            Text(figures.short_source(buffer.source)),
        )
    return table


def _curve(peak: PeakMemory) -> list[str]:
    """The memory over the step in one line, if it is known: from 0 to the peak."""
    return [f"over the step {line} up to {figures.size(peak.bytes)}" for line in curve_rows(peak, CURVE_WIDTH, 1)]
