"""The rows of a table of buffers: what fills the memory at the peak of a step."""

from collections.abc import Sequence

from rich.text import Text

from ...engine.base import figures
from ...engine.wire.descriptions import PeakBuffer
from ..state.peak_words import held_by, lifetime
from .lines import set_titles
from .table import Table, right

NARROW = ("bytes", "live", "source", "holds")
"""Columns in a narrow terminal."""
WIDE = ("bytes", "padding", "live", "is", "source", "layout", "holds")


def show_buffers(table: Table, buffers: Sequence[PeakBuffer], is_wide: bool, title: str) -> None:
    """Fills a table with buffers, the largest first, with as many columns as there is room for."""
    columns = WIDE if is_wide else NARROW
    rows = {str(at): _cells(buffer) for at, buffer in enumerate(buffers)}
    table.show_rows(columns, {key: [cells[name] for name in columns] for key, cells in rows.items()})
    set_titles(table.rows, title)


def _cells(buffer: PeakBuffer) -> dict[str, Text]:
    return {
        "holds": Text(held_by(buffer)),
        "is": Text(buffer.kind),
        "bytes": right(figures.size(buffer.bytes)),
        "padding": right(figures.size(buffer.padding) if buffer.padding else ""),
        "live": right(lifetime(buffer)),
        "source": Text(figures.short_source(buffer.source)),
        "layout": Text(buffer.layout, "dim"),
    }
