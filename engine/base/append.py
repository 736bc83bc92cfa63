"""Opens a file for appending. It never blocks, even if the path is a FIFO or a device."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from .regular_file import NotRegular


def append_regular(path: Path) -> BinaryIO:
    """Opens `path` unbuffered, creating it if need be. Raises OSError; NotRegular for anything but a regular file."""
    if path.is_dir():
        raise NotRegular(str(path), stat.S_IFDIR)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise NotRegular(str(path), mode)
        return os.fdopen(descriptor, "a+b", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise
