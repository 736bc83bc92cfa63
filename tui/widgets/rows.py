"""A table in which a click highlights a row, enter or a double click selects it, and no edge cuts a number."""

from collections.abc import Iterable

from rich.segment import Segment
from rich.text import Text
from textual.coordinate import Coordinate
from textual.events import Click
from textual.strip import Strip
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from .lines import NUMBER, cut_point, refit_titles


class Rows(DataTable[Text]):
    """A data table that a click does not act on. A number at the edge is shown in full or not at all."""

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

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        at = self.scroll_offset.y + y - self.header_height
        if y < self.header_height or not 0 <= at < self.row_count:
            return strip
        begin, width = -self.scroll_offset.x, self.scrollable_content_region.width
        for column, cell in zip(self.ordered_columns, self.get_row_at(at), strict=True):
            end = begin + column.get_render_width(self)
            if begin < 0 < end and NUMBER.search(cell.plain):
                strip = _without(strip, 0, end)
            elif begin < width < end:
                strip = _without(
                    strip, begin + self.cell_padding + _shown(cell, width - begin - self.cell_padding), width
                )
            begin = end
        return strip


def _shown(cell: Text, room: int) -> int:
    """Returns how many cells of a cut text to show, without the number at its edge.

    A right-aligned text with a number is not shown at all: the edge would cut that number.
    """
    if cell.justify == "right":
        return 0 if NUMBER.search(cell.plain) else room
    return min(room, cut_point(cell.plain, room))


def _without(strip: Strip, begin: int, end: int) -> Strip:
    """Returns the strip with spaces from cell `begin` to cell `end`."""
    hidden = strip.crop(max(0, begin), end)
    style = next((segment.style for segment in hidden), None)
    blank = Strip([Segment(" " * hidden.cell_length, style)])
    return Strip.join([strip.crop(0, max(0, begin)), blank, strip.crop(end)])
