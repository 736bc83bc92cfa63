"""The table of a plan."""

from collections.abc import Sequence

from ...engine.planning.ranking import Row
from ..state.board_rows import WIDE_FROM, columns
from ..terminal.plain_table import fitting
from .table import Table


class PlanTable(Table):
    """A row for each preset, best first: its verdict, memory, time and what limits it."""

    def on_mount(self) -> None:
        self.ranking: dict[str, Row] = {}
        """By title, best first."""

    def show_ranking(self, rows: Sequence[Row], compiling: Sequence[str]) -> None:
        """Shows the presets, the best first. `compiling`: titles of the rows that are being compiled."""
        self.ranking = {row.title: row for row in rows}
        width = self.screen.size.width
        self.show_columns(columns(width >= WIDE_FROM, compiling), self.ranking, width)

    @property
    def selected_row(self) -> Row | None:
        """The row under the cursor; None if the table is empty."""
        return self.ranking.get(self.selected or "")

    @property
    def fits_screen(self) -> bool:
        return not self.names or len(self.names) == len(fitting(columns(), self.screen.size.width))
