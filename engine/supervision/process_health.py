"""Whether a process of the engine can still run: one that cannot is ended, as it cannot end itself."""

import contextlib
import os
import time
from pathlib import Path

from ..base.stacks import DUMP_SIGNAL, dump_file

STOPPED_SECONDS = 4.0
"""A process that a signal has stopped for so long is ended: before the others miss its heartbeats."""
STOPPED = "stopped by a signal, such as SIGSTOP"
SILENT_SECONDS = 20.0
"""The same for one in which Python has not run for so long, in the middle of a step…"""
LONG_SILENT_SECONDS = 300.0
"""…or of anything else, such as a compilation."""
IN_STEP = " in _dispatch_step\n"
"""Stands in the stack of a training thread that is in a step."""
COMPILING = "/jax/_src/compiler.py"
"""Stands in the stack of one that compiles."""
LONGEST_POLL_SECONDS = 1.0
"""More time between two looks does not count: the supervisor itself was stopped."""


def clear(beat: Path) -> None:
    """Deletes the files of a process that has not started, or has ended."""
    for path in (beat, dump_file(beat)):
        path.unlink(missing_ok=True)


class ProcessHealth:
    """The signs of life of one process."""

    def __init__(self, pid: int, beat: Path) -> None:
        """`beat`: the file that the process touches twice a second."""
        self._pid, self._beat, self._dump = pid, beat, dump_file(beat)
        self._stopped = self._silent = 0.0
        """Seconds for which it has been stopped, and has not touched the file."""
        self._touched = 0
        self._has_asked = False
        """Whether it was asked for its stacks since it last touched the file."""
        self._looked = time.monotonic()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
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
        self._has_asked = self._has_asked and self._silent > 0
        if self._stopped >= STOPPED_SECONDS:
            return STOPPED
        if self._silent < SILENT_SECONDS or self._stopped:
            return None
        if self._silent >= LONG_SILENT_SECONDS or self._is_in_step():
            return f"stuck for {self._silent:.0f} s: native code keeps Python from running"
        return None

    def stacks(self) -> str:
        """Returns its stacks, if it was asked for them."""
        with contextlib.suppress(OSError):
            return self._dump.read_text(errors="replace")
        return ""

    def _is_in_step(self) -> bool:
        """Whether its training thread is in a step. It writes its stacks although Python does not run, so ask again."""
        if not self._has_asked:
            self._has_asked = True
            with contextlib.suppress(OSError):  # it has ended, or its file is gone
                os.truncate(self._dump, 0)
                os.kill(self._pid, DUMP_SIGNAL)
        main = self.stacks().rpartition("hread 0x")[2]  # the main thread is the last one
        return IN_STEP in main and COMPILING not in main
