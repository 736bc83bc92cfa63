"""Tables of rows, whose columns are described once: commands print them, views show them; consoles for plain text."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich import box, table
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ...engine.base.output import printable

R = TypeVar("R", contravariant=True)
UNLIMITED = 10_000
"""A width with room for every column."""


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
    wide_from: int = 0
    """Least columns of a terminal that has room for it."""

    def text(self, row: R, separator: str = "; ") -> Text:
        """Returns the cell of a row. `separator`: what stands between its parts."""
        cell = self.cell(row)
        if isinstance(cell, Text):
            return cell
        text = cell if isinstance(cell, str) else separator.join(cell)
        return Text(text, self.style, justify="right" if self.is_figure else None)


def figure(name: str, cell: Callable[[R], str | Text | Sequence[str]], wide_from: int = 0) -> Column[R]:
    return Column(name, cell, is_figure=True, wide_from=wide_from)


def fitting(columns: Sequence[Column[R]], width: int) -> list[Column[R]]:
    return [column for column in columns if column.wide_from <= width]


def table_of(
    columns: Sequence[Column[R]], rows: Iterable[R], width: int = UNLIMITED, *, title: str = "", caption: str = ""
) -> table.Table:
    """Returns a table for a terminal of `width` columns."""
    shown = fitting(columns, width)
    headings = [right(each.name) if each.is_figure else table.Column(each.name, overflow="fold") for each in shown]
    found = plain_table(*headings, title=title, caption=caption)
    for row in rows:
        found.add_row(*(column.text(row, "\n") for column in shown))
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
    return PlainConsole(markup=False, emoji=False, **options)


def table_console() -> Console:
    """Returns a console as wide as the terminal or `$COLUMNS`, or `PIPE_WIDTH` columns wide for a pipe."""
    console = plain_console()
    return console if console.is_terminal or "COLUMNS" in os.environ else plain_console(width=PIPE_WIDTH)
