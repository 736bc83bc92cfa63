"""Opens regular files only: reading a FIFO may block, and a device never ends."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


READ_AT_ONCE = 2**20


class NotRegular(OSError):
    def __init__(self, path: str, mode: int) -> None:
        self.kind = KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"{self.kind}, not a regular file", path)


def open_regular(path: Path | str) -> BufferedReader:
    """Opens `path` for reading and never blocks. Raises OSError; NotRegular for anything but a regular file."""
    path = os.fspath(path)
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 # opening some devices has side effects
    except ValueError as error:  # a NUL byte, or a character that cannot be encoded
        raise OSError(errno.EINVAL, f"not a path: {error}", path) from error
    _require_regular(path, mode)
    return open(path, "rb", opener=_opened)


def read_regular(path: Path | str, limit: int) -> bytes:
    """Returns the content of a regular file. Raises OSError as `open_regular` does, and if it has more than `limit`
    bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1) or b""  # None if a file of /proc has no data yet
        while len(content) <= limit and (more := file.read(READ_AT_ONCE)):  # such files have no size
            content += more
    if len(content) > limit:
        size = max(len(content), size)
        raise OSError(errno.EFBIG, f"{size:,} bytes: at most {limit:,} are read", os.fspath(path))
    return content


def _require_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegular(path, mode)


def append_regular(path: Path) -> BinaryIO:
    """Opens `path` for appending, unbuffered, and never blocks. Raises OSError; NotRegular as `open_regular`."""
    if path.is_dir():
        raise NotRegular(str(path), stat.S_IFDIR)
    return open(path, "a+b", buffering=0, opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)  # the file may have been replaced since it was looked at
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
