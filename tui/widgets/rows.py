"""A table in which a click highlights a row, and enter or a double click selects it."""

from collections.abc import Iterable

from rich.text import Text
from textual.coordinate import Coordinate
from textual.events import Click
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from .lines import refit_titles


class Rows(DataTable[Text]):
    """A data table that a click does not act on."""

    async def _on_click(self, event: Click) -> None:
        """Stops clicks that Textual's handler would take for enter, or whose row or column has been removed."""
        row, column = event.style.meta.get("row", -1), event.style.meta.get("column", -1)
        is_gone = row >= self.row_count or column >= len(self.columns)
        if is_gone or (event.chain != 2 and Coordinate(row, column) == self.cursor_coordinate):
            event.prevent_default()
            event.stop()

    def on_resize(self) -> None:
        refit_titles(self)

    def _update_dimensions(self, new_rows: Iterable[RowKey]) -> None:
        """Forgets lines that were drawn before the columns had their widths: Textual would show these again."""
        super()._update_dimensions(new_rows)
        self._clear_caches()
        self.refresh()
