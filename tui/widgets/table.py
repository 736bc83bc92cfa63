"""A table that the user filters, sorts and copies from, with the same keys in every view."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import DataTable, Input

from ..bindings import identified
from ..terminal.plain_table import GAP, Cells, Column, R, filled, fit, needed_cells
from .filter import Filter, pattern_of
from .lines import ELLIPSIS, Texts, cut_point
from .rows import Rows

MARKS = " ●○◌✗▾▸"
"""Characters beside a name that show its state, or that it can be opened."""


class Table(Vertical):
    """Rows with a filter above them. The view gives all rows; those that match are shown in the chosen order, in the
    columns for which there is room. The cells that are cut or left out stand below, of the row under the cursor."""

    HELP = """\
## Tables

**/** filters: every word, a regular expression, must match somewhere in the row; **escape** ends it. **o** sorts by the
next column, **O** in the other direction. **y** copies the row with all its cells, tab-separated, and **Y** its first
cell, through the terminal's clipboard (OSC 52). A table that is too narrow for all columns leaves some out, never the
one that sorts it, and cuts long texts, never figures.
"""
    DEFAULT_CSS = """
    Table { height: 1fr; }
    Table > Texts { height: 2; padding: 0 2; color: $text-muted; }
    """
    BINDING_GROUP_TITLE = "Table"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "table",
        [
            ("slash", "filter", "Filter"),
            ("o", "sort", "Sort"),
            Binding("O", "reverse", "Sort in the other direction", show=False),
            Binding("y", "copy_row", "Copy row", show=False),
            Binding("Y", "copy_cell", "Copy first cell", show=False),
            Binding("escape", "no_filter", "No filter", show=False),
        ],
    )

    class Refilled(Message):
        """The rows are others, and with them maybe the one under the cursor."""

    def __init__(self, sorted_by: str | None = None, has_full_text: bool = True) -> None:
        """`sorted_by`: the column that sorts the rows at first, largest figure on top; None for the view's order.
        `has_full_text`: whether what is cut or left out of the row under the cursor is shown below the rows."""
        super().__init__()
        self.rows = Rows(cursor_type="row", zebra_stripes=True)
        self.sorted_by = sorted_by
        self.is_reversed = False
        self.columns: Sequence[Column[Any]] = ()
        self.given: Mapping[str, Any] = {}
        """The rows as the view gave them, by key."""
        self.all_rows: Mapping[str, Cells] = {}
        """Every row by its key, in the view's order; with a cell for each column, shown or not."""
        self.needed: Sequence[int] = ()
        """Cells that each column needs to be shown in full, with the gap to the next one."""
        self.found_rows: Mapping[str, Cells] = {}
        """The rows that match the filter, in the chosen order."""
        self.shown_widths: Mapping[int, int] = {}
        """Cells of the columns that are shown, by index."""
        self.full_text = Texts()
        self.full_text.display = False
        self.has_full_text = has_full_text

    def compose(self) -> ComposeResult:
        yield Filter()
        yield self.rows
        yield self.full_text

    def on_resize(self) -> None:
        self.refresh_rows()

    @property
    def selected(self) -> str | None:
        return self.rows.selected

    @property
    def selected_cells(self) -> Cells:
        return self.found_rows.get(self.selected or "", ())

    def show_columns(self, columns: Sequence[Column[R]], rows: Mapping[str, R]) -> None:
        """Shows the rows, by key. Cells that stay the same are not redrawn."""
        self.columns, cells = filled(columns, [cells_of(columns, row) for row in rows.values()])
        self.given, self.all_rows = rows, dict(zip(rows, cells, strict=True))
        self.needed = needed_cells(self.columns, cells)
        self.refresh_rows()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def refresh_rows(self) -> None:
        """Shows the rows that match the filter, in the chosen order, in the columns for which there is room."""
        if not self.columns:
            return
        self.found_rows, self.shown_widths = self.matching(), self.widths()
        labels = [self.label(self.columns[at]) for at in self.shown_widths]
        shown = {
            key: [shortened(cells[at], width, self.columns[at]) for at, width in self.shown_widths.items()]
            for key, cells in self.found_rows.items()
        }
        is_whole = all(GAP + self.shown_widths.get(at, -GAP) >= needed for at, needed in enumerate(self.needed))
        self.full_text.display = self.has_full_text and not is_whole
        if [column.label for column in self.rows.ordered_columns] == labels and self.rows.keys == list(shown):
            self.rows.update_cells(shown.values())
        else:
            self.rows.fill(labels, shown)
            self.post_message(self.Refilled())
        self.show_full_text()

    def widths(self) -> Mapping[int, int]:
        """Returns the cells of the columns for which there is room, by index, without the gaps."""
        needed = [
            max(cells, GAP + cell_len(self.label(column).plain))
            for column, cells in zip(self.columns, self.needed, strict=True)
        ]
        bar = self.rows.styles.scrollbar_size_vertical if len(self.all_rows) >= self.rows.size.height else 0
        room = (self.rows.size.width or self.screen.size.width) - bar
        found = fit(self.columns, needed, room, self.sorted_by)
        while len(found) > 1 and sum(found.values()) > room:  # an edge would cut a figure
            del found[max(at for at in found if self.columns[at].name != self.sorted_by)]
        return {at: cells - GAP for at, cells in found.items()}

    @on(DataTable.RowHighlighted)
    def show_full_text(self) -> None:
        """Shows the cells that the table cuts or leaves out, of the row under the cursor."""
        if not self.full_text.display:
            return
        widths = self.shown_widths
        hidden = [
            f"{self.columns[at].name}: {cell.plain.strip()}"
            for at, cell in enumerate(self.selected_cells)
            if cell.plain.strip() and (at not in widths or cell.cell_len > widths[at])
        ]
        self.full_text.show_texts([(" · ".join(hidden), "")])

    def patterns(self) -> list[re.Pattern[str]]:
        return [pattern_of(word) for word in self.query_one(Filter).value.split()]

    def matching(self) -> Mapping[str, Cells]:
        """Returns the rows that match the filter: figures from the largest, names from A, what is unknown last; where
        it is reversed, the known ones the other way round."""
        patterns = self.patterns()
        found = {key: cells for key, cells in self.all_rows.items() if matches(cells, patterns)}
        if self.sorted_by is None or self.sorted_by not in self.names:
            return found
        at = self.names.index(self.sorted_by)
        value = self.columns[at].value
        is_falling = self.is_reversed if value is None else not self.is_reversed
        values = {
            key: value(self.given[key]) if value else cells[at].plain.strip(MARKS).casefold() or None
            for key, cells in found.items()
        }
        return {key: found[key] for key in ordered(values, is_falling)}

    def label(self, column: Column[Any]) -> Text:
        """Returns the heading of a column, aligned like its cells, and marked if the rows are sorted by it."""
        mark = (" ▴" if self.is_reversed else " ▾") if column.name == self.sorted_by else ""
        return Text(column.name + mark, justify="right" if column.is_figure else None)

    def select(self, key: str) -> None:
        """Moves the cursor to a row; ends the filter if that hides it."""
        if key not in self.rows.keys:
            self.query_one(Filter).close()
            self.refresh_rows()
        if key in self.rows.keys:
            self.rows.move_cursor(row=self.rows.keys.index(key))

    @on(Input.Changed)
    def apply_filter(self, event: Input.Changed) -> None:
        event.stop()
        self.refresh_rows()

    @on(Input.Submitted)
    def leave_filter(self, event: Input.Submitted) -> None:
        event.stop()
        self.rows.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "no_filter" or self.query_one(Filter).display

    def action_filter(self) -> None:
        self.query_one(Filter).open()

    def action_no_filter(self) -> None:
        self.query_one(Filter).close()
        self.rows.focus()

    def action_sort(self) -> None:
        orders = [None, *self.names]
        following = dict(zip(orders, [*orders[1:], None], strict=True))
        self.sorted_by, self.is_reversed = following.get(self.sorted_by), False
        self.refresh_rows()

    def action_reverse(self) -> None:
        self.is_reversed = not self.is_reversed
        self.refresh_rows()

    def action_copy_row(self) -> None:
        self.copy("\t".join(cell.plain.strip() for cell in self.selected_cells))

    def action_copy_cell(self) -> None:
        self.copy("".join(cell.plain.strip(MARKS) for cell in self.selected_cells[:1]))

    def copy(self, text: str) -> None:
        if text:
            self.app.copy_to_clipboard(text)  # pyright: ignore[reportUnknownMemberType]
            self.notify(text, title="copied", markup=False)


def cells_of(columns: Sequence[Column[R]], row: R) -> Cells:
    return [column.text(row) for column in columns]


def ordered(values: Mapping[str, Any], is_falling: bool) -> list[str]:
    """Returns the keys in the order of their values; those of None and NaN last."""
    known = {key: each for key, each in values.items() if each is not None and each == each}
    return [*sorted(known, key=known.__getitem__, reverse=is_falling), *(key for key in values if key not in known)]


def shortened(cell: Text, width: int, column: Column[Any]) -> Text:
    """Returns the text in `width` cells, with `…` where it is cut: not inside a number at its end."""
    if column.is_figure or cell.cell_len <= width:
        return cell
    text, room = cell.plain, width - len(ELLIPSIS)
    if column.cut == "left":
        mark = text[: len(text) - len(text.lstrip(MARKS))]
        begins = range(len(mark), len(text) + 1)
        begin = begins[bisect_left(begins, -room, key=lambda at: -cell_len(mark + text[at:]))]
        return Text.assemble(Text(mark + ELLIPSIS, cell.style), cell[begin:])
    end = bisect_right(range(len(text) + 1), room, key=lambda at: cell_len(text[:at])) - 1
    left = cell[: cut_point(text, end)]
    left.rstrip()
    return left.append(ELLIPSIS)


def matches(cells: Cells, patterns: Sequence[re.Pattern[str]]) -> bool:
    text = " ".join(cell.plain for cell in cells)
    return all(pattern.search(text) for pattern in patterns)
