"""Whether an engine moves that was told to end: what it reads and writes, its events, its log and its checkpoints."""

import contextlib
import os
import time
from pathlib import Path

from ...engine.base.invalid import Invalid
from ...engine.wire.lock import Holder
from ...engine.wire.run_directory import RunDirectory

NOTICED = 64 * 1024
"""Bytes that a process reads or writes: less is no sign, as one that waits also reads its clock."""


class LifeSigns:
    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._holder = directory.holder()
        self._checkpoints = _local_checkpoints(directory)
        self.began = self.moved_at = time.monotonic()
        self._held_before = _tree_size(self._checkpoints)
        self.written = 0
        """Bytes by which the run's checkpoints have grown."""
        self._seen: tuple[int, ...] = ()

    @property
    def still_seconds(self) -> float:
        """Without a sign."""
        return time.monotonic() - self.moved_at

    def look(self) -> None:
        held = _tree_size(self._checkpoints)
        self.written = max(self.written, held - self._held_before)
        seen = (held, _size(self._directory.events), _size(self._directory.log), _moved(self._holder) // NOTICED)
        if seen != self._seen:
            self._seen, self.moved_at = seen, time.monotonic()


def _local_checkpoints(directory: RunDirectory) -> Path | None:
    """None where they are not on this machine, or nobody can say where."""
    with contextlib.suppress(Invalid):
        path = directory.checkpoints(directory.config)
        return None if "://" in path else Path(path)
    return None


def _moved(holder: Holder | None) -> int:
    """Bytes that the process has read and written, wherever to; 0 where the system does not say (proc_pid_io(5))."""
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
