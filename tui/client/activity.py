"""Whether an engine that was asked to stop makes progress: its I/O, its events, its log and its checkpoints."""

import contextlib
import os
import time
from pathlib import Path

from ...engine.base.invalid import Invalid
from ...engine.wire.lock import Holder
from ...engine.wire.run_directory import RunDirectory

MIN_IO_BYTES = 64 * 1024
"""Bytes that a process must read or write to count as active: an idle one also reads its clock."""


class Activity:
    """Polls an engine for signs of progress."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._holder = directory.holder()
        self._checkpoints = _local_checkpoints(directory)
        self.began = self.active_at = time.monotonic()
        """Start, and time of the last progress, in seconds of the monotonic clock."""
        self._bytes_at_start = _tree_size(self._checkpoints)
        self.checkpoint_growth = 0
        """Bytes by which the run's checkpoints have grown."""
        self._last_sample: tuple[int, ...] = ()
        """Sizes of the files, and I/O in units of `MIN_IO_BYTES`."""

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.active_at

    def poll(self) -> None:
        """Looks for progress since the last call."""
        checkpoint_bytes, io_bytes = _tree_size(self._checkpoints), _io_bytes(self._holder)
        self.checkpoint_growth = max(self.checkpoint_growth, checkpoint_bytes - self._bytes_at_start)
        file_sizes = _size(self._directory.events), _size(self._directory.log)
        sample = (checkpoint_bytes, *file_sizes, io_bytes // MIN_IO_BYTES)
        if sample != self._last_sample:
            self._last_sample, self.active_at = sample, time.monotonic()


def _local_checkpoints(directory: RunDirectory) -> Path | None:
    """Returns None if the checkpoints are on another machine, or their place is unknown."""
    with contextlib.suppress(Invalid):
        path = directory.checkpoints(directory.config)
        return None if "://" in path else Path(path)
    return None


def _io_bytes(holder: Holder | None) -> int:
    """Returns the bytes that the process has read and written (proc_pid_io(5)); 0 if that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if holder and holder.is_here:
            fields = Path(f"/proc/{holder.pid}/io").read_text().split()
            return int(fields[1]) + int(fields[3])  # rchar, wchar
    return 0


def _tree_size(path: Path | None) -> int:
    return sum(_size(Path(folder, name)) for folder, _, names in os.walk(path) for name in names) if path else 0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it was renamed or deleted just now
        return 0
