"""Writes files, atomically: a reader finds the new content or the old one, even after a power failure."""

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path

from .user_error import UserError


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file; several processes may do so at once. Raises OSError; the old content then stays. `mode`: the
    permissions, less the umask."""
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            new.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # not the temporary name, which differs each time
        raise
    sync_directory(path.parent)


def require_in_place(path: Path, descriptor: int) -> None:
    """Raises OSError if a file that is open for writing is no longer the one at `path`."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            return
    raise OSError(errno.ESTALE, "it was removed or replaced meanwhile", str(path))


@contextlib.contextmanager
def writing(name: str) -> Generator[None]:
    """Raises an OSError in this context as a UserError that begins with `name`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name}: cannot be written: {error.strerror or error}") from error


def sync_directory(path: Path) -> None:
    """Makes renames in a directory survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
