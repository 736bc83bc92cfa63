"""Consoles that print answers as plain text: no markup, no emoji names."""

import os
from typing import Any

from rich.console import Console

PIPE_WIDTH = 140
"""Columns of a table that is written to a pipe or a file."""


def plain_console(**options: Any) -> Console:
    """Returns a console that prints text as it is. `options`: those of `rich.console.Console`."""
    return Console(markup=False, emoji=False, **options)


def table_console() -> Console:
    """Returns a console as wide as the terminal or `$COLUMNS`, or `PIPE_WIDTH` columns wide for a pipe."""
    console = plain_console()
    return console if console.is_terminal or "COLUMNS" in os.environ else plain_console(width=PIPE_WIDTH)
