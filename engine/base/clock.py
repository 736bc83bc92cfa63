"""Jumps of the machine's clock: an administrator, a time service or a virtual machine sets it."""

import time

LEAST_SECONDS = 1.0
"""Less is no jump: a time service corrects that by and by."""


class Jumps:
    """Compares the clock with one that nothing sets, and that counts on while the machine sleeps."""

    def __init__(self) -> None:
        self._ahead = _ahead()

    def new(self) -> float:
        """Returns the seconds by which the clock has jumped since the last call, back if negative; 0 if it has not."""
        before, now = self._ahead, _ahead()
        if abs(now - before) < LEAST_SECONDS:
            return 0.0
        self._ahead = now
        return now - before


def _ahead() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
