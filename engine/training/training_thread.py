"""What the training thread does, and for how long: seen from outside, so that no step takes longer."""

import sys
import time

import msgspec

from ..wire.events import Event, Restored, StepsDone, Switched, SwitchFailed, TrainingStarted
from ..wire.hosts import Activity
from .locations import doing, location, user_location, waits

LATE_SECONDS = 20.0
"""A step that takes longer is late…"""
LATE_STEPS = 5
"""…unless it takes less than this many of the slowest step under the preset, without its first."""
FIRST_SECONDS = 300.0
"""The same for the first steps under a preset, which connect the devices and allocate memory."""
FIRST_STEPS = 2
"""How many these are."""
USER_SECONDS = 5.0
"""Time after which the location of the user's code is reported."""
LONGEST_POLL_SECONDS = 2.0
"""More time between two looks does not count: this process was stopped."""


class TrainingThread:
    """The training thread, which is the main thread of this process."""

    def __init__(self, user_directory: str | None) -> None:
        """`user_directory`: directory of the user's code, None if there is none."""
        self._user_directory = user_directory
        self._slowest: float | None = None
        """Seconds of the slowest step under the preset; None until the second one."""
        self._is_first = True
        """Whether no step under the preset has been reported."""
        self._last = Activity()
        self._looked = self._changed = self._began = time.monotonic()
        """When it was looked at, when it was seen to begin something, and when steps under the preset began."""
        self._origin = 0
        """Steps before the first one under the preset."""

    def note(self, event: Event) -> None:
        """Records an event of the training thread."""
        match event:
            case StepsDone():
                seconds = [self._slowest or 0.0, *event.step_seconds[self._is_first :]]
                self._slowest = max(seconds) or None
                self._is_first = False
            case TrainingStarted() | Switched() | SwitchFailed() | Restored():
                self._slowest, self._is_first = None, True
                self._origin, self._began = event.step, time.monotonic()
            case _:
                pass

    def look(self, begun: int) -> Activity:
        """Returns what it does. `begun`: steps that it has begun."""
        frames, now = sys._current_frames(), time.monotonic()
        current, before = doing(frames), self._last
        seconds = 0.0
        if (current, begun) == (before.doing, before.step):
            seconds = before.seconds + min(now - self._looked, LONGEST_POLL_SECONDS)
        else:
            self._changed = now
        is_late = current == "step" and seconds >= self._limit(begun)
        user = self.user_location() if seconds >= USER_SECONDS else None
        self._looked = now
        self._last = Activity(doing=current, step=begun, seconds=seconds)
        where = user or (location(frames) if is_late else "")
        return msgspec.structs.replace(self._last, is_late=is_late, where=where, waits=waits(frames))

    def user_location(self) -> str | None:
        """Returns the location of the user's code that it is in or waits for; None if it is in none."""
        return user_location(sys._current_frames(), self._user_directory) if self._user_directory else None

    def location(self) -> str:
        """Returns where it is, outside libraries."""
        return location(sys._current_frames())

    def _limit(self, begun: int) -> float:
        """Returns the seconds after which a step is late."""
        if self._slowest is not None:
            return max(LATE_SECONDS, LATE_STEPS * self._slowest)
        if begun <= self._origin + FIRST_STEPS:
            return FIRST_SECONDS
        together = self._changed - self._began  # of the steps so far, which are not reported yet
        return max(LATE_SECONDS, LATE_STEPS * together)
