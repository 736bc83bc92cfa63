"""The style of all tables that commands print: a line below the headings and nothing else, easy to cut and to paste."""

from rich import box
from rich.table import Column, Table


def plain_table(*columns: str | Column, title: str = "", caption: str = "", lines: bool = False) -> Table:
    """Returns an empty table. `lines`: whether its rows, which may be of several lines, are kept apart."""
    return Table(
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


def right(name: str) -> Column:
    """Returns a column of figures, which are never wrapped."""
    return Column(name, justify="right", no_wrap=True)
