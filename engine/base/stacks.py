"""The stacks of the threads of a process that hangs, in a file that several processes share."""

import contextlib
import faulthandler
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

from .regular_file import append_regular

DUMP_SIGNAL = signal.SIGUSR2
"""Makes a process write its stacks, also while native code keeps Python from running: see `dump_on_signal`."""
LOCK_SECONDS = 1.0
"""Longest wait for another process that appends."""


def append_stacks(path: Path, header: str, stacks: str | None = None) -> None:
    """Appends time, header and stacks in one piece, as other processes append theirs. Raises OSError. `stacks`: another
    process's; None for all threads of this one."""
    with append_regular(path) as file:
        _lock(file)
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {header}\n{stacks or ''}"
        os.write(file.fileno(), text.encode(errors="backslashreplace"))
        if stacks is None:
            faulthandler.dump_traceback(file)
        os.write(file.fileno(), b"\n")


def _lock(file: BinaryIO) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)


def dump_on_signal(file: int) -> None:
    """From now on, this process writes its stacks to this file descriptor on `DUMP_SIGNAL`, and goes on."""
    faulthandler.register(DUMP_SIGNAL, file)
