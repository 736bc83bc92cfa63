"""Makes text from files, models and logs fit for a terminal, once, where it enters the UI process.

Characters that a terminal obeys, hides or leaves blank (control characters, escapes, bidirectional overrides,
zero-width and unassigned characters) become visible. Markup is left as it is: widgets get `Content` and `Text` objects,
and tables go to a console that does not interpret it.
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
"""Fillers and variation selectors: Unicode classifies them as letters, marks and symbols, but they show nothing."""
NOT_ASCII = re.compile(r"[^\x20-\x7e]")

S = TypeVar("S", bound=msgspec.Struct)


def printable(text: str) -> str:
    """Returns the text with blanks as spaces, and what is not printable as Python escapes such as `\\x1b`."""
    if text.isprintable() and (text.isascii() or not BLANK_LETTERS.search(text)):
        return text
    return "".join(map(_visible, text))


def warn(*texts: str) -> None:
    for text in texts:
        print(f"shardtui: {printable(text)}", file=sys.stderr)


def clean(message: S) -> S:
    """Returns the message with every text in it printable."""
    return msgspec.convert(_cleaned(msgspec.to_builtins(message)), type(message))


def json_line(message: msgspec.Struct) -> str:
    """Returns the message as a line of ASCII JSON: escapes lose nothing, are harmless, and suit every locale."""
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
