"""Text from files, models and logs, made fit for a terminal once, where it enters the UI process.

What a terminal obeys, hides or leaves blank (control characters, escapes, bidirectional overrides, zero-width and
unassigned characters) becomes visible. Markup needs nothing here: widgets are given `Content` and `Text`, and tables
go to a console that never reads it.
"""

import re
import sys
import unicodedata
from typing import Any, TypeVar

import msgspec

from ...engine.wire.framing import encode_json

BLANK_LETTERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Fillers and variation selectors: Unicode counts them among letters, marks and symbols, and they show nothing."""
NOT_ASCII = re.compile(r"[^\x20-\x7e]")

S = TypeVar("S", bound=msgspec.Struct)


def printable(text: str) -> str:
    """Spaces for line ends, tabs and other blanks; `\\x1b`, `\\u202e` and the like as they are written in Python."""
    if text.isprintable() and (text.isascii() or not BLANK_LETTERS.search(text)):
        return text
    return "".join(map(_visible, text))


def warn(*texts: str) -> None:
    """Each on a line of stderr."""
    for text in texts:
        print(f"shardtui: {printable(text)}", file=sys.stderr)


def clean(message: S) -> S:
    """The same with every text in it printable."""
    return msgspec.convert(_cleaned(msgspec.to_builtins(message)), type(message))


def json_line(message: msgspec.Struct) -> str:
    """JSON for programs, in ASCII: escapes lose nothing, do nothing to a terminal, and every locale can encode them."""
    return NOT_ASCII.sub(lambda found: _json_escape(found.group()), encode_json(message).decode())


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
    if character in "\n\r\t" or unicodedata.category(character) == "Zs":
        return " "
    if character.isprintable() and not BLANK_LETTERS.match(character):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
