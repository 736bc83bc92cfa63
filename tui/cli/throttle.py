"""Limits how often progress is printed on stderr."""

import time

PROGRESS_SECONDS = 2.0
"""Least time between two lines of progress."""


class Throttle:
    """Says when the next line of progress is due."""

    def __init__(self) -> None:
        self._last: float | None = None

    def is_due(self) -> bool:
        """Returns True on the first call, and again once `PROGRESS_SECONDS` have passed since it last returned True."""
        now = time.monotonic()
        if self._last is not None and now - self._last <= PROGRESS_SECONDS:
            return False
        self._last = now
        return True
