"""The field in which the user types what rows must match."""

import re

from textual.widgets import Input


class Filter(Input):
    """A regular expression, ignoring case; hidden until it is opened."""

    DEFAULT_CSS = """
    Filter { display: none; height: 1; padding: 0 2; }
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
