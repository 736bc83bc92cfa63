"""A table of rows in which a click selects, and enter or a double click acts."""

from rich.text import Text
from textual.coordinate import Coordinate
from textual.events import Click
from textual.widgets import DataTable


class Rows(DataTable[Text]):
    async def _on_click(self, event: Click) -> None:
        """Textual's acts on any click on what is selected already, and looks for a column that was there when the table
        was drawn."""
        row, column = event.style.meta.get("row", -1), event.style.meta.get("column", -1)
        is_gone = row >= self.row_count or column >= len(self.columns)
        if is_gone or (event.chain != 2 and Coordinate(row, column) == self.cursor_coordinate):
            event.prevent_default()
            event.stop()
