"""Whether a process of the engine can still run: one that cannot is ended, as it cannot end itself."""

import contextlib
import os
import time
from pathlib import Path

STOPPED_SECONDS = 4.0
"""A process that a signal has stopped for so long is ended: before the others miss its heartbeats."""
STOPPED = "stopped by a signal, such as SIGSTOP"
SILENT_SECONDS = 20.0
"""The same for one in which Python has not run for so long, in the middle of a step…"""
LONG_SILENT_SECONDS = 300.0
"""…or of anything else, such as a compilation."""
LONGEST_POLL_SECONDS = 1.0
"""More time between two looks does not count: the supervisor itself was stopped."""


class ProcessHealth:
    def __init__(self, pid: int, beat: Path) -> None:
        """`beat`: the file in which the process writes twice a second whether it is in a step."""
        self._pid, self._beat = pid, beat
        self._stopped = self._silent = 0.0
        """Seconds for which it has been stopped, and has not written."""
        self._touched = 0
        self._looked = time.monotonic()

    @property
    def is_stopped(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            return found is not None and found.si_code == os.CLD_STOPPED
        return False

    def problem(self) -> str | None:
        """Returns why the process cannot go on; None if it can. To be called all the time."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_POLL_SECONDS), now
        self._stopped = self._stopped + passed if self.is_stopped else 0.0
        with contextlib.suppress(OSError):
            touched = self._beat.stat().st_mtime_ns
            self._silent = self._silent + passed if touched == self._touched else 0.0
            self._touched = touched
        if self._stopped >= STOPPED_SECONDS:
            return STOPPED
        if self._silent < SILENT_SECONDS or self._stopped:
            return None
        if self._silent >= LONG_SILENT_SECONDS or self.written().startswith("step"):
            return f"stuck for {self._silent:.0f} s in native code that keeps Python from running"
        return None

    def written(self) -> str:
        """Returns what is in its file: `step` or `else`, or its stacks, once it has been asked for them."""
        with contextlib.suppress(OSError):
            return self._beat.read_text(errors="replace")
        return ""
