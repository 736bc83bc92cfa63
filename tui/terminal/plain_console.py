"""Where rich prints answers: text in them is text, never markup or the name of an emoji."""

from typing import Any

from rich.console import Console

PIPE_WIDTH = 140
"""Columns of a table that does not go to a terminal."""


def plain_console(**options: Any) -> Console:
    return Console(markup=False, emoji=False, **options)


def table_console() -> Console:
    """As wide as the terminal; on a pipe there is room."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=PIPE_WIDTH)
