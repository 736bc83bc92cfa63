"""Limits how often progress is printed on stderr."""

import time

PROGRESS_SECONDS = 2.0
"""Least time between two lines of progress."""


class Throttle:
    """Says when the next line of progress is due."""

    def __init__(self, seconds: float = PROGRESS_SECONDS) -> None:
        self._seconds = seconds
        self._last: float | None = None

    def is_due(self) -> bool:
        """Returns True on the first call, and again once `seconds` have passed since it last returned True."""
        now = time.monotonic()
        if self._last is not None and now - self._last <= self._seconds:
            return False
        self._last = now
        return True
