"""A table that the user filters, sorts and copies from, with the same keys in every view."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import Input

from ..bindings import identified
from ..terminal.plain_table import UNLIMITED, Column, R, fitting
from .rows import Rows

MARKS = " ●○◌✗▾▸"
"""Characters beside a name that show its state, or that it can be opened."""
SCALES = {
    "": 1.0,
    "B": 1.0,
    "k": 1e3,
    "kB": 1e3,
    "M": 1e6,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "%": 1.0,
}
"""Factor of each unit that `engine.base.formatting` writes."""
FIGURE = re.compile(
    r"[≈ ]*(?P<sign>[−+-]?)(?P<number>\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(?:…[\d.e-]+)? ?(?P<unit>[a-zA-Zµ%]*)(?![\w.])"
)
SHAPE = re.compile(r"\d+(?: ?× ?\d+)+")

SortValue = tuple[int, float, str]
"""Figures, then names, then what is unknown."""


def sort_value(text: str) -> SortValue:
    """Returns what a cell is sorted by: a figure with its unit, the product of a shape's sizes, or a name."""
    text = text.strip(MARKS)
    if not text or text in "–?…":
        return (2, 0.0, "")
    if SHAPE.fullmatch(text):
        return (0, float(math.prod(map(int, re.findall(r"\d+", text)))), "")
    found = FIGURE.match(text)
    if found is None or found["unit"] not in SCALES:
        return (1, 0.0, text.casefold())
    value = float(found["number"].replace(",", "")) * SCALES[found["unit"]]
    return (0, -value if found["sign"] in ("−", "-") else value, "")


class Filter(Input):
    """A regular expression, ignoring case; hidden until it is opened."""

    DEFAULT_CSS = """
    Filter { display: none; height: 1; margin: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__(placeholder="filter: a regular expression", compact=True)

    def open(self) -> None:
        self.display = True
        self.focus()

    def close(self) -> None:
        self.value, self.display = "", False


def pattern_of(text: str) -> re.Pattern[str]:
    """Returns the pattern that the user has typed; its literal text while it is not a valid one."""
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error:
        return re.compile(re.escape(text), re.IGNORECASE)


Cells = Sequence[Text]


class Table(Vertical):
    """Rows with a filter above them. The view gives all rows; those that match are shown in the chosen order."""

    HELP = """\
## Tables

**/** filters: every word, a regular expression, must match somewhere in the row; **escape** ends it. **o** sorts by the
next column, **O** in the other direction. **y** copies the row, tab-separated, and **Y** its first cell, through the
terminal's clipboard (OSC 52).
"""
    DEFAULT_CSS = """
    Table { height: 1fr; }
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

    def __init__(self, sorted_by: str | None = None) -> None:
        """`sorted_by`: the column that sorts the rows at first, largest figure on top; None for the view's order."""
        super().__init__()
        self.rows = Rows(cursor_type="row", zebra_stripes=True)
        self.sorted_by = sorted_by
        self.is_reversed = False
        self.names: Sequence[str] = ()
        """Names of the columns."""
        self.all_rows: Mapping[str, Cells] = {}
        """Every row by its key, in the view's order."""

    def compose(self) -> ComposeResult:
        yield Filter()
        yield self.rows

    @property
    def selected(self) -> str | None:
        return self.keys[self.rows.cursor_row] if 0 <= self.rows.cursor_row < self.rows.row_count else None

    @property
    def keys(self) -> list[str]:
        return [row.key.value or "" for row in self.rows.ordered_rows]

    def show_columns(self, columns: Sequence[Column[R]], rows: Mapping[str, R], width: int = UNLIMITED) -> None:
        """Shows the rows, by key, in the columns that a terminal of `width` columns has room for."""
        shown = fitting(columns, width)
        self.show_rows([column.name for column in shown], {key: cells_of(shown, row) for key, row in rows.items()})

    def show_rows(self, names: Sequence[str], rows: Mapping[str, Cells]) -> None:
        """Shows the rows, by key, under the names of their columns. Cells that stay the same are not redrawn."""
        self.names, self.all_rows = names, rows
        self.refresh_rows()

    def refresh_rows(self) -> None:
        """Shows the rows that match the filter, in the chosen order."""
        if not self.names:
            return
        shown = self.matching()
        cells = next(iter(self.all_rows.values()), [Text()] * len(self.names))
        labels = [self.label(name, cell) for name, cell in zip(self.names, cells, strict=True)]
        if [column.label for column in self.rows.ordered_columns] == labels and self.keys == list(shown):
            self.update_cells(shown)
        else:
            self.fill(labels, shown)

    def patterns(self) -> list[re.Pattern[str]]:
        return [pattern_of(word) for word in self.query_one(Filter).value.split()]

    def matching(self) -> Mapping[str, Cells]:
        patterns = self.patterns()
        found = {key: cells for key, cells in self.all_rows.items() if matches(cells, patterns)}
        if self.sorted_by is None or self.sorted_by not in self.names:
            return found
        at = self.names.index(self.sorted_by)
        values = {key: sort_value(cells[at].plain) for key, cells in found.items()}
        return {key: found[key] for key in sorted(found, key=lambda key: self.order_of(values[key]))}

    def order_of(self, value: SortValue) -> tuple[int, float, tuple[int, ...]]:
        """Returns the sort key of a cell: figures from the largest, names from A; reversed, the other way round."""
        kind, number, name = value
        sign = 1 if self.is_reversed else -1
        letters = tuple(-sign * ord(letter) for letter in name)
        return (kind, sign * number, letters)

    def label(self, name: str, cell: Text) -> Text:
        """Returns the heading of a column, aligned like its `cell`, and marked if the rows are sorted by it."""
        mark = (" ▴" if self.is_reversed else " ▾") if name == self.sorted_by else ""
        return Text(name + mark, justify=cell.justify)

    def update_cells(self, shown: Mapping[str, Cells]) -> None:
        for at, cells in enumerate(shown.values()):
            for column, (old, new) in enumerate(zip(self.rows.get_row_at(at), cells, strict=True)):
                if old != new:
                    self.rows.update_cell_at(Coordinate(at, column), new, update_width=True)

    def fill(self, labels: Sequence[Text], shown: Mapping[str, Cells]) -> None:
        """Draws the whole table. The cursor stays on its row; if that was the first, it stays at the top."""
        selected = self.selected if self.rows.cursor_row else None
        self.rows.clear(columns=True)
        for label in labels:
            self.rows.add_column(label)
        for key, cells in shown.items():
            self.rows.add_row(*cells, key=key)
        names = list(shown)
        if selected in names:
            self.rows.move_cursor(row=names.index(selected))
        self.post_message(self.Refilled())

    def select(self, key: str) -> None:
        """Moves the cursor to a row; ends the filter if that hides it."""
        if key not in self.keys:
            self.query_one(Filter).close()
            self.refresh_rows()
        if key in self.keys:
            self.rows.move_cursor(row=self.keys.index(key))

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
        self.copy("\t".join(cell.plain.strip() for cell in self.all_rows.get(self.selected or "", ())))

    def action_copy_cell(self) -> None:
        cells = self.all_rows.get(self.selected or "", ())
        self.copy(cells[0].plain.strip(MARKS) if cells else "")

    def copy(self, text: str) -> None:
        if text:
            self.app.copy_to_clipboard(text)  # pyright: ignore[reportUnknownMemberType]
            self.notify(text, title="copied", markup=False)


def cells_of(columns: Sequence[Column[R]], row: R) -> Cells:
    return [column.text(row) for column in columns]


def matches(cells: Cells, patterns: Sequence[re.Pattern[str]]) -> bool:
    text = " ".join(cell.plain for cell in cells)
    return all(pattern.search(text) for pattern in patterns)
