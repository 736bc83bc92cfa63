"""Reads a checkpoint's files, and tells a storage that fails from a file that is damaged.

A file is damaged if its bytes were read and differ, or if it is certainly absent: a directory that can be listed does
not have it. Whatever else goes wrong proves nothing about the checkpoint.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BufferedReader
from typing import TypeVar, cast

from etils import epath

from ..base.regular_file import NotRegular, open_regular
from ..base.untrusted import read_bytes
from ..base.user_error import UserError
from ..distributed.outcomes import Damaged, Problem, Unreadable

PAUSES = [0.1, 0.5, 2.0]
"""Seconds between two tries to read from a storage that fails."""
T = TypeVar("T")


def patiently(path: epath.Path, attempt: Callable[[], T]) -> T:
    """Returns what `attempt` reads from `path`, tried again while the storage fails. Raises Unreadable; Damaged as
    `attempt` does."""
    for pause in (*PAUSES, None):
        try:
            return attempt()
        except (Damaged, Unreadable):
            raise
        except Exception as error:  # remote storages have exceptions of their own
            if pause is None or isinstance(error, PermissionError | NotADirectoryError):  # do not pass by themselves
                raise unreadable(path, error) from error
            time.sleep(pause)
    raise AssertionError


def unreadable(path: epath.Path, error: Exception) -> Unreadable:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Unreadable(f"{path}: cannot be read: {why}: nothing was changed: try again once the storage works")


@contextmanager
def as_user_error() -> Generator[None]:
    """Raises a Problem in this context as a UserError, where someone asked for a checkpoint outside of training."""
    try:
        yield
    except Problem as error:
        raise UserError(*error.problems) from error


def names_in(directory: epath.Path) -> list[str] | None:
    """Returns the names in a directory; None if there is no such directory. Raises Unreadable."""

    def attempt() -> list[str] | None:
        try:
            return [path.name for path in directory.iterdir()]
        except FileNotFoundError:
            return None

    return patiently(directory, attempt)


def read_file(checkpoint: epath.Path, path: epath.Path, read: Callable[[BufferedReader], T]) -> T:
    """Returns what `read` makes of a file of the checkpoint. Raises Unreadable; Damaged if there is no such file."""

    def attempt() -> T:
        try:
            with _opened(path) as file:
                return read(file)
        except (FileNotFoundError, NotRegular, NotADirectoryError) as error:
            if isinstance(error, FileNotFoundError) and not _is_absent(path, checkpoint):
                raise
            raise Damaged(f"{short_name(path)}: {error.strerror or error}") from error

    return patiently(path, attempt)


def content(path: epath.Path) -> bytes:
    """Returns the content of a small file of any checkpoint. Raises UserError."""
    if is_local(path):
        return read_bytes(os.fspath(path))
    with as_user_error():
        return patiently(path, path.read_bytes)


def _opened(path: epath.Path) -> BufferedReader:
    return open_regular(os.fspath(path)) if is_local(path) else cast(BufferedReader, path.open("rb"))


def _is_absent(path: epath.Path, checkpoint: epath.Path) -> bool:
    """Whether a directory of the checkpoint can be listed and does not have the path, or what it is in."""
    if path == checkpoint:
        return False
    names = names_in(path.parent)
    return _is_absent(path.parent, checkpoint) if names is None else path.name not in names


def short_name(path: epath.Path) -> str:
    return f"{path.parent.name}/{path.name}"


def is_local(path: epath.Path) -> bool:
    return "://" not in os.fspath(path)
