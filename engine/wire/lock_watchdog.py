"""Notices that a run's directory is no longer the one in which its engine holds the lock."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from .run_directory import RunDirectory

POLL_SECONDS = 1.0


class LockWatchdog:
    """Checks every second, in a thread: an engine whose directory is gone could be neither found nor stopped."""

    def __init__(self, directory: RunDirectory, lock: BinaryIO, stop: Callable[[], object]) -> None:
        """`stop` is called once, in the watchdog's thread."""
        self.is_lost = False
        """True once the directory was removed or replaced."""
        self.problem = f"{directory.path}: the run's directory was removed or replaced: nothing more can be saved there"
        self._lock = lock
        self._path = directory.lock
        self._stop = stop
        threading.Thread(target=self._poll, name="lock watchdog", daemon=True).start()

    def _poll(self) -> None:
        while self._is_same_file():
            time.sleep(POLL_SECONDS)
        if not self._lock.closed:
            self.is_lost = True
            print(f"{self.problem}: stopping", file=sys.stderr, flush=True)
            self._stop()

    def _is_same_file(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._lock.fileno()))
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the lock was released
            return False
        except OSError:  # a file system that fails now may recover
            return True
