"""The table of a plan."""

from collections.abc import Sequence

from rich.text import Text

from ...engine.planning.ranking import Row
from ..state import board_rows
from .table import Cells, Table, right

WIDE_FROM = 110
"""Least terminal columns at which a row also has rate, traffic and the errors of the estimate."""
COLUMNS = ("preset", "verdict", "peak", "step time", "MFU", "bound by", "from")
WIDE_COLUMNS = (*COLUMNS, "tokens/s", "sent per step", "peak error", "sent error")


class PlanTable(Table):
    """A row for each preset, best first: its verdict, memory, time and what limits it."""

    def on_mount(self) -> None:
        self.ranking: dict[str, Row] = {}
        """By title, best first."""

    def show_ranking(self, rows: Sequence[Row], compiling: Sequence[str]) -> None:
        """Shows the presets, the best of which is the first. `compiling`: titles of those that are being compiled."""
        self.ranking = {row.title: row for row in rows}
        columns = WIDE_COLUMNS if self.is_wide else COLUMNS
        cells = {name: _cells(row, self.is_wide, name in compiling) for name, row in self.ranking.items()}
        self.show_rows(columns, cells)

    @property
    def selected_row(self) -> Row | None:
        """The row under the cursor; None if the table is empty."""
        return self.ranking.get(self.selected or "")

    @property
    def is_wide(self) -> bool:
        """Whether the screen has room for `WIDE_COLUMNS`."""
        return self.screen.size.width >= WIDE_FROM

    @property
    def fits_screen(self) -> bool:
        """Whether the table has the columns for the screen's width, or none yet."""
        return not self.names or (len(self.names) == len(WIDE_COLUMNS)) == self.is_wide


def _short_title(row: Row) -> str:
    """Returns the preset and the names of its settings: `fsdp8 +remat`."""
    return " ".join([row.preset, *(f"+{key}" for key in row.settings)])


def _cells(row: Row, is_wide: bool, is_compiling: bool) -> Cells:
    cells = [
        Text(row.title if is_wide else _short_title(row), "bold"),
        Text(
            board_rows.short_verdict(row),
            {"fits": "green", "too large": "yellow", "not known": "dim", "infeasible": "dim"}[row.verdict],
        ),
        right(board_rows.peak_of_capacity(row) if is_wide else board_rows.peak(row)),
        right(board_rows.step_time(row)),
        right(board_rows.utilisation(row)),
        Text(board_rows.bound(row)),
        Text("compiling" if is_compiling else board_rows.source(row), "dim"),
    ]
    if is_wide:
        errors = board_rows.errors(row)
        cells += [
            right(board_rows.tokens_rate(row)),
            Text(", ".join(board_rows.most_sent(row))),
            right(board_rows.percent(errors.peak) if errors else ""),
            right(board_rows.percent(errors.sent) if errors and errors.sent is not None else ""),
        ]
    return cells
