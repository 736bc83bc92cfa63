"""The colour of each mesh axis: the same in every view and command."""

import re
from collections.abc import Iterable

from rich.text import Text

AXIS_STYLES = tuple(f"axis-{number}" for number in range(7))
"""Names of theme variables, and of styles in the tables."""
ANSI = ("bright_blue", "magenta", "cyan", "blue", "green", "bright_magenta", "bright_cyan")
"""The colour of each in a terminal whose own colours are used."""
_found: dict[str, str] = {}


def axis_style(axis: str) -> str:
    """Returns the style of a mesh axis: those of the built-in presets have one each, another gets the next one."""
    for name in ("data", "model", "fsdp", "expert", "pipeline", axis):
        _found.setdefault(name, AXIS_STYLES[len(_found) % len(AXIS_STYLES)])
    return _found[axis]


def axes_text(text: str, axes: Iterable[str]) -> Text:
    """Returns a table's text with these axes in their colours."""
    found = Text(text)
    for axis in axes:
        found.highlight_regex(whole_word(axis), axis_style(axis))
    return found


def whole_word(axis: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(axis)}(?!\w)")
