"""A table of rows in which a click selects, and enter or a double click acts."""

from rich.text import Text
from textual.coordinate import Coordinate
from textual.events import Click
from textual.widgets import DataTable


class Rows(DataTable[Text]):
    async def _on_click(self, event: Click) -> None:
        """Textual's acts on any click on what is selected already."""
        meta = event.style.meta
        if event.chain != 2 and Coordinate(meta.get("row", -1), meta.get("column", -1)) == self.cursor_coordinate:
            event.prevent_default()
            event.stop()
