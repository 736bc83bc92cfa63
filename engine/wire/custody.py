"""Whether a run's directory is still the one in which its engine holds the lock."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from .run_directory import RunDirectory

LOOK_SECONDS = 1.0


class Custody:
    """Looks every second, in a thread: nobody could find or stop an engine whose directory is gone."""

    def __init__(self, directory: RunDirectory, lock: BinaryIO, stop: Callable[[], object]) -> None:
        """`stop` is called in the thread, once."""
        self.is_lost = False
        self.problem = f"{directory.path}: the run's directory was removed or replaced: nothing is saved there any more"
        self._lock = lock
        self._path = directory.lock
        self._stop = stop
        threading.Thread(target=self._look, name="custody", daemon=True).start()

    def _look(self) -> None:
        while self._is_there():
            time.sleep(LOOK_SECONDS)
        if not self._lock.closed:
            self.is_lost = True
            print(f"{self.problem}: stopping", file=sys.stderr, flush=True)
            self._stop()

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._lock.fileno()))
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: it was released
            return False
        except OSError:  # a file system that does not answer may do so again
            return True
