"""Structs as JSON and MessagePack, whatever text is in them.

Paths and messages may contain lone surrogates, which UTF-8 cannot encode: Python reads bytes of a file name that are
not UTF-8 as such. In what is only shown they become escapes such as `\\udcff`, once, here.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from .output import printable
from .user_error import UserError

_json, _msgpack = msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode


def encode_json(message: object) -> bytes:
    return _encoded(_json, message)


def encode_msgpack(message: object) -> bytes:
    return _encoded(_msgpack, message)


def exact_json(message: object) -> bytes:
    """Returns JSON with every path exactly as it is. Raises UserError if one is not text: JSON could not hold it."""
    try:
        return _json(message)
    except UnicodeEncodeError as error:
        raise not_text(str(error.object)) from error


def encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def text_path(path: Path) -> Path:
    """Returns the path. Raises UserError if it is not text."""
    if str(path) != encodable(str(path)):
        raise not_text(str(path))
    return path


def not_text(path: str) -> UserError:
    return UserError(
        f"{printable(path)}: not valid text in the encoding {sys.getfilesystemencoding()}: rename the file or directory"
    )


def _encoded(encode: Callable[[object], bytes], message: object) -> bytes:
    try:
        return encode(message)
    except UnicodeEncodeError:
        return encode(with_texts(msgspec.to_builtins(message, builtin_types=(bytes,)), encodable))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a value of builtin types with every text in it changed, keys too."""
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [with_texts(item, change) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
