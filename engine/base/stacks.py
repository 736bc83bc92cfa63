"""Writes the stacks of all threads of this process to a file, which several processes may share."""

import contextlib
import faulthandler
import fcntl
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

from .regular_file import append_regular

DUMP_SIGNAL = signal.SIGUSR2
"""Makes a process that called `dump_on_signal` write its stacks, also while native code keeps Python from running."""
LOCK_SECONDS = 1.0
"""Longest wait for another process that writes to the file."""
_registered: list[BinaryIO] = []
"""Files that a signal handler writes to: they stay open."""


def stamped(text: str) -> str:
    """Returns the text after the time."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"


def append_stacks(path: Path, header: str) -> None:
    """Appends the header and the stacks of all threads. Raises OSError."""
    with tempfile.TemporaryFile() as dump:
        faulthandler.dump_traceback(dump)
        dump.seek(0)
        append_text(path, f"{header}\n{dump.read().decode(errors='replace')}")


def append_text(path: Path, text: str) -> None:
    """Appends the text and an empty line in one piece. Raises OSError."""
    with append_regular(path) as file:
        _lock(file)  # not every shared file system appends in one piece by itself
        os.write(file.fileno(), f"{text}\n".encode())


def dump_on_signal(path: Path) -> None:
    """From now on, `DUMP_SIGNAL` makes this process append its stacks to the file. Ignored if it cannot be written."""
    with contextlib.suppress(OSError):
        _registered.append(append_regular(path))
        faulthandler.register(DUMP_SIGNAL, _registered[-1])


def dump_file(beat: Path) -> Path:
    """Returns the file for the stacks of a supervised process. `beat`: see `RunDirectory.beat`."""
    return beat.with_name(f"{beat.name}-stacks")


def _lock(file: BinaryIO) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
