"""The colour of each mesh axis: the same in every view and command."""

import re
from collections.abc import Iterable

from rich.text import Text

ANSI = {
    f"axis-{number}": colour
    for number, colour in enumerate(
        ("bright_blue", "magenta", "cyan", "blue", "green", "bright_magenta", "bright_cyan")
    )
}
"""The colour of each style in a terminal whose own colours are used."""
AXIS_STYLES = tuple(ANSI)
"""Names of theme variables, and of styles in the tables."""
_found: dict[str, str] = dict(zip(("data", "model", "fsdp", "expert", "pipeline"), AXIS_STYLES, strict=False))


def axis_style(axis: str) -> str:
    """Returns the style of a mesh axis: those of the built-in presets have one each, another gets the next one."""
    return _found.setdefault(axis, AXIS_STYLES[len(_found) % len(AXIS_STYLES)])


def axes_text(text: str, axes: Iterable[str]) -> Text:
    """Returns a table's text with these axes in their colours."""
    found = Text(text)
    for axis in axes:
        found.highlight_regex(whole_word(axis), axis_style(axis))
    return found


def whole_word(axis: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(axis)}(?!\w)")
