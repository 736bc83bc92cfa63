"""Files that somebody else may have put there: only regular ones are opened. A FIFO has no writer, a device no end."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


class NotRegular(OSError):
    """`kind`: what it is instead."""

    def __init__(self, path: str, mode: int) -> None:
        self.kind = KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"{self.kind}, not a regular file", path)


def open_regular(path: Path | str) -> BufferedReader:
    """For reading, without waiting for anything. Raises OSError; NotRegular where it is no regular file."""
    path = os.fspath(path)
    _refuse_others(path, os.stat(path).st_mode)  # noqa: PTH116 # opening some devices does something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse_others(path, os.fstat(descriptor).st_mode)  # another may have taken its place
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path) -> bytes:
    """Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def _refuse_others(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegular(path, mode)
