"""Tables of rows, whose columns are described once: commands print them, views show them; consoles for plain text."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rich import box, table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from ...engine.base.output import printable
from .axis_style import ANSI

R = TypeVar("R", contravariant=True)
S = TypeVar("S")
Cells = Sequence[Text]
"""The texts of a row."""
UNLIMITED = 10_000
"""A width with room for every column."""
GAP = 2
"""Cells between two columns."""
LEAST_TEXT = 40
"""Cells at which a text is cut at least while another column can leave."""
NARROWEST = 8
"""Cells at which a text is cut at least in any case."""


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column: its heading, and its cell for each row."""

    name: str
    cell: Callable[[R], str | Text | Sequence[str]]
    """Returns the text of a cell, with a style if rows differ in it; or the texts of one with several parts, which a
    command prints below each other."""
    is_figure: bool = False
    """Whether its cells are right-aligned and never wrapped."""
    style: str = ""
    leaves: int = 0
    """Its turn to leave a table that is too narrow for all: 1 leaves first, 0 stays."""
    cut: Literal["right", "left"] = "right"
    """The side at which a text is cut that is too long: the left one if its end says more, as in a path."""
    value: Callable[[R], float | None] | None = None
    """Returns what a view sorts a row by, None if unknown; without it by the text of the cell."""

    def text(self, row: R, separator: str = "; ") -> Text:
        """Returns the cell of a row. `separator`: what stands between its parts."""
        cell = self.cell(row)
        if isinstance(cell, Text):
            return cell
        text = cell if isinstance(cell, str) else separator.join(cell)
        return Text(text, self.style, justify="right" if self.is_figure else None)


def figure(
    name: str,
    value: Callable[[R], float | None],
    words: Callable[[float], str | Text] = str,
    leaves: int = 0,
    unknown: str = "",
) -> Column[R]:
    """Returns a column of numbers. `words`: formats one; `unknown`: the cell of a row that has none."""

    def cell(row: R) -> str | Text:
        return unknown if (found := value(row)) is None else words(found)

    return Column(name, cell, is_figure=True, leaves=leaves, value=value)


def column_of(column: Column[R], part: Callable[[S], R | None]) -> Column[S]:
    """Returns the column of rows that it describes a part of, with empty cells where `part` is None."""
    value = column.value

    def cell(row: S) -> str:
        return "" if (found := part(row)) is None else printable(column.text(found).plain)

    def part_value(row: S) -> float | None:
        return None if (found := part(row)) is None or value is None else value(found)

    return Column(column.name, cell, column.is_figure, leaves=column.leaves, value=value and part_value)


def fit(columns: Sequence[Column[Any]], needed: Sequence[int], room: int, kept: str | None = None) -> dict[int, int]:
    """Returns the widths of the columns for which there is room, by index.

    Figures are whole. Texts share what is left of `room`; where that is too little, columns leave in their order,
    except the one with the name `kept`. One that has room once others have left returns. `needed`: cells of each column
    in full, `room`: of all, both with the gaps.
    """
    shown = list(range(len(columns)))
    while (longest := _longest_text(columns, needed, shown, room)) < LEAST_TEXT:
        leaving = [at for at in shown if columns[at].leaves and columns[at].name != kept]
        if not leaving:
            break
        shown.remove(min(leaving, key=lambda at: columns[at].leaves))
    longest = max(longest, NARROWEST)
    widths = {at: needed[at] if columns[at].is_figure else min(needed[at], longest) for at in shown}
    for at in sorted(set(range(len(columns))).difference(shown), key=lambda at: -columns[at].leaves):
        if sum(widths.values()) + needed[at] <= room:
            widths[at] = needed[at]
    return dict(sorted(widths.items()))


def _longest_text(columns: Sequence[Column[Any]], needed: Sequence[int], shown: Sequence[int], room: int) -> int:
    """Returns the cells at which texts are cut so that all columns that are shown have room."""
    left = room - sum(needed[at] for at in shown if columns[at].is_figure)
    texts = sorted(needed[at] for at in shown if not columns[at].is_figure)
    for at, cells in enumerate(texts):
        if cells > (share := left // (len(texts) - at)):
            return share
        left -= cells
    return UNLIMITED if left >= 0 else 0


def filled(columns: Sequence[Column[R]], rows: Sequence[Cells]) -> tuple[list[Column[R]], list[Cells]]:
    """Returns the columns to show in any width, and their cells: not one that may leave and is empty in all rows."""
    kept = [
        at
        for at, column in enumerate(columns)
        if not column.leaves or not rows or any(row[at].plain.strip() for row in rows)
    ]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def needed_cells(columns: Iterable[Column[Any]], rows: Iterable[Cells]) -> list[int]:
    """Returns the cells of each column in full, with the gap to the next one."""
    needed = [cell_len(column.name) for column in columns]
    for row in rows:
        needed = [max(cells, *map(cell_len, cell.plain.split("\n"))) for cells, cell in zip(needed, row, strict=True)]
    return [GAP + cells for cells in needed]


def table_of(
    columns: Sequence[Column[R]], rows: Iterable[R], width: int = UNLIMITED, *, title: str = "", caption: str = ""
) -> table.Table:
    """Returns a table for a terminal of `width` columns. Texts that are too long are folded, not cut."""
    columns, cells = filled(columns, [[column.text(row, "\n") for column in columns] for row in rows])
    shown = fit(columns, needed_cells(columns, cells), width)
    headings = [
        right(columns[at].name) if columns[at].is_figure else table.Column(columns[at].name, overflow="fold")
        for at in shown
    ]
    found = plain_table(*headings, title=title, caption=caption)
    for row in cells:
        found.add_row(*(row[at] for at in shown))
    return found


def plain_table(*columns: str | table.Column, title: str = "", caption: str = "", lines: bool = False) -> table.Table:
    """Returns an empty table: a line below the headings and nothing else, easy to cut and to paste. `lines`: whether
    its rows, which may be of several lines, are kept apart."""
    return table.Table(
        *columns,
        title=title or None,
        caption=caption or None,
        box=box.SIMPLE_HEAD,
        title_style="bold",
        title_justify="left",
        caption_style="dim",
        caption_justify="left",
        show_lines=lines,
    )


def right(name: str) -> table.Column:
    return table.Column(name, justify="right", no_wrap=True)


PIPE_WIDTH = 140
"""Columns of a table that is written to a pipe or a file."""


class PlainConsole(Console):
    """Prints text as it is, but for what a terminal would obey, which it makes printable."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else "\n".join(map(printable, segment.text.split("\n")))
            yield Segment(text, segment.style, segment.control)


def plain_console(**options: Any) -> Console:
    """`options`: for `rich.console.Console`."""
    return PlainConsole(markup=False, emoji=False, theme=Theme(ANSI), **options)


def table_console() -> Console:
    """Returns a console as wide as the terminal or `$COLUMNS`, or `PIPE_WIDTH` columns wide for a pipe."""
    console = plain_console()
    return console if console.is_terminal or "COLUMNS" in os.environ else plain_console(width=PIPE_WIDTH)
