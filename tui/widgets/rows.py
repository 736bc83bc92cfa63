"""A table in which a click highlights a row, and enter or a double click selects it."""

from collections.abc import Iterable, Mapping, Sequence

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

    @property
    def keys(self) -> list[str]:
        return [row.key.value or "" for row in self.ordered_rows]

    @property
    def selected(self) -> str | None:
        return self.keys[self.cursor_row] if 0 <= self.cursor_row < self.row_count else None

    def fill(self, labels: Sequence[Text], rows: Mapping[str, Sequence[Text]]) -> None:
        """Draws the whole table. The cursor stays on its row; if that was the first, it stays at the top."""
        selected = self.selected if self.cursor_row else None
        self.clear(columns=True)
        for label in labels:
            self.add_column(label)
        for key, cells in rows.items():
            self.add_row(*cells, key=key)
        names = list(rows)
        if selected in names:
            self.move_cursor(row=names.index(selected))

    def update_cells(self, rows: Iterable[Sequence[Text]]) -> None:
        """Shows these rows in the place of as many; draws only the cells that change."""
        for at, cells in enumerate(rows):
            for column, (old, new) in enumerate(zip(self.get_row_at(at), cells, strict=True)):
                if old != new:
                    self.update_cell_at(Coordinate(at, column), new, update_width=True)

    def _update_dimensions(self, new_rows: Iterable[RowKey]) -> None:
        """Forgets lines that were drawn before the columns had their widths: Textual would show these again."""
        super()._update_dimensions(new_rows)
        self._clear_caches()
        self.refresh()
