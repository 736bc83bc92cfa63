"""Opens a file to append to it, without waiting for whatever else may lie in its place."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from .regular_file import NotRegular


def append_regular(path: Path) -> BinaryIO:
    """Unbuffered; made where there is none. Raises OSError; NotRegular where it is no regular file."""
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
