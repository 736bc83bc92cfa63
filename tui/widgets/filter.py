"""The line in which the user types a filter of a list or a table."""

import re

from textual.widgets import Input


class Filter(Input):
    """A regular expression, ignoring case; hidden until it is opened."""

    DEFAULT_CSS = """
    Filter { display: none; height: 1; margin: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__(placeholder="filter: a regular expression", compact=True)

    def open(self) -> None:
        """Shows the line and moves the focus to it."""
        self.display = True
        self.focus()

    def close(self) -> None:
        """Empties the line and hides it."""
        self.value, self.display = "", False


def pattern_of(text: str) -> re.Pattern[str]:
    """Returns the pattern that the user has typed; as long as it is not a valid one, that of its literal text."""
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error:
        return re.compile(re.escape(text), re.IGNORECASE)
