"""Where rich prints answers: text in them is text, never markup or the name of an emoji."""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    return Console(markup=False, emoji=False, **options)
