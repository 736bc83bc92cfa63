"""A table of rows in which a click selects, enter or a double click acts, and an edge cuts no number in two."""

from rich.segment import Segment
from rich.text import Text
from textual.coordinate import Coordinate
from textual.events import Click
from textual.strip import Strip
from textual.widgets import DataTable

from .lines import retitle
from .whole import NUMBER, whole_before


class Rows(DataTable[Text]):
    async def _on_click(self, event: Click) -> None:
        """Textual's acts on any click on what is selected already, and looks for a column that was there when the table
        was drawn."""
        row, column = event.style.meta.get("row", -1), event.style.meta.get("column", -1)
        is_gone = row >= self.row_count or column >= len(self.columns)
        if is_gone or (event.chain != 2 and Coordinate(row, column) == self.cursor_coordinate):
            event.prevent_default()
            event.stop()

    def on_resize(self) -> None:
        retitle(self)

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
    """Cells of a text whose end is cut off, without the number at the edge. Where it ends at the right, any is cut."""
    if cell.justify == "right":
        return 0 if NUMBER.search(cell.plain) else room
    return min(room, whole_before(cell.plain, room))


def _without(strip: Strip, begin: int, end: int) -> Strip:
    """With spaces from the one cell to the other."""
    hidden = strip.crop(max(0, begin), end)
    style = next((segment.style for segment in hidden), None)
    blank = Strip([Segment(" " * hidden.cell_length, style)])
    return Strip.join([strip.crop(0, max(0, begin)), blank, strip.crop(end)])
