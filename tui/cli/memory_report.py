"""The table of what fills the memory at the peak of a step."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.wire.descriptions import PeakBuffer, PeakMemory
from ..state.peak_words import coverage, held_by, lifetime, moment
from ..terminal.plain_table import plain_table, right


def peak_table(name: str, peak: PeakMemory, buffers: Sequence[PeakBuffer], compiler: int) -> Table:
    """Returns the largest buffers at the peak of a step. `name`: the preset. `compiler`: its own figure of the peak."""
    table = plain_table(
        Column("array or operation", overflow="fold"),
        "is",
        right("bytes"),
        right("padding"),
        Column("layout", overflow="fold"),
        right("live"),
        Column("source", overflow="fold"),
        title=f"{name}: largest buffers at the peak, predicted: {moment(peak)}",
        caption=coverage(peak, buffers, compiler),
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
