"""When training makes no progress for so long that it is said."""

import time

STALL_SECONDS = 30.0
"""Time without progress that is a stall…"""
STALL_STEPS = 3
"""…unless it takes less than this many steps, by the slowest of the last report."""


class StallTimer:
    def __init__(self) -> None:
        self.seconds = self._reported = 0.0
        """Seconds without progress, when it was last asked."""
        self._last = time.monotonic()

    def progress(self) -> None:
        self._last = time.monotonic()

    def is_due(self, step_seconds: float, is_idle: bool = False) -> bool:
        """Returns whether it is to be said: once it is a stall, and at each doubling. `step_seconds`: of the slowest
        step of the last report. `is_idle`: whether there is nothing to do, which is no stall."""
        if is_idle:
            self.progress()
        self.seconds = time.monotonic() - self._last
        if self.seconds < self._reported:
            self._reported = 0.0
        if self.seconds < max(STALL_SECONDS, STALL_STEPS * step_seconds, 2 * self._reported):
            return False
        self._reported = self.seconds
        return True
