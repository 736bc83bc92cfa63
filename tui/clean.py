"""Text from files, models and logs, made fit for a terminal once, where it enters the UI process.

What a terminal obeys or hides (control characters, escapes, bidirectional overrides, zero-width characters) becomes
visible. Markup needs nothing here: widgets are given `Content` and `Text`, which never read it.
"""

import re
from typing import Any, TypeVar

import msgspec

UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)

S = TypeVar("S", bound=msgspec.Struct)


def printable(text: str) -> str:
    """Spaces for line ends and tabs; `\\x1b`, `\\u202e` and the like as they are written in Python."""
    return UNPRINTABLE.sub(lambda found: _visible(found.group()), text)


def clean(message: S) -> S:
    """The same with every text in it printable."""
    return msgspec.convert(_cleaned(msgspec.to_builtins(message)), type(message))


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list():
            return [_cleaned(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {_cleaned(key): _cleaned(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _visible(character: str) -> str:
    if character in "\n\r\t":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
