"""Reads and decodes what may hold anything: the caller gets the type that it asks for, or a UserError.

Programs elsewhere write these files, downloads end halfway, disks fail. No other module decodes the content of files.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from .regular_file import read_regular
from .user_error import UserError

T = TypeVar("T")
MAX_BYTES = 2**28
"""Bytes of a file, unless its reader allows another number."""


def read_bytes(path: Path | str, limit: int = MAX_BYTES, name: str = "") -> bytes:
    """Returns the content of a regular file of at most `limit` bytes. Raises UserError, which begins with `name`, by
    default the path; its cause is an OSError if the file cannot be read, another error if its content is wrong."""
    with refusing(name or str(path)):
        return read_regular(path, limit)


def read_text(path: Path | str, limit: int = MAX_BYTES, name: str = "") -> str:
    with refusing(name or str(path)):
        return read_regular(path, limit).decode()


def read_struct(path: Path | str, kind: type[T], limit: int = MAX_BYTES, name: str = "", advice: str = "") -> T:
    """Decodes a JSON file. Raises UserError as `read_bytes` does. `advice`: what to do if the content is wrong."""
    name = name or str(path)
    return decode(read_bytes(path, limit, name), kind, name, advice)


def decode(content: bytes | str, kind: type[T], name: str, advice: str = "") -> T:
    """Decodes JSON. Raises UserError as `read_struct` does."""
    with refusing(name, advice=advice):
        return msgspec.json.decode(content, type=kind)


@contextmanager
def refusing(name: str, wrong: str = "cannot be read", advice: str = "") -> Generator[None]:
    """Raises every error as a UserError that begins with `name`: around the call of a parser, which may raise any.
    `wrong`, `advice`: what is wrong if the content is, and what to do then."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or _line(error)}") from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        raise UserError(": ".join(filter(None, (name, wrong, _line(error), advice)))) from error


def _line(error: BaseException) -> str:
    match error:
        case RecursionError():
            return "nested too deeply"
        case MemoryError():
            return "it takes more memory than there is"
        case _:
            return " ".join(str(error).split()) or type(error).__name__
