"""The clock of a replay: a point in the recorded time that moves `speed` times as fast as real time."""

import time


class Playback:
    """Where a replay is, how fast it goes and whether it is paused."""

    def __init__(self, speed: float) -> None:
        """`speed`: recorded seconds per second; 0 plays everything at once."""
        self.speed = speed
        self.is_paused = False
        self.is_over = False
        self._position = 0.0
        """Recorded time, in seconds since the epoch, when the clock was last set."""
        self._set_at = time.monotonic()
        """When that was, in seconds of the monotonic clock."""

    @property
    def now(self) -> float:
        """The recorded time that is played now, in seconds since the epoch."""
        is_moving = not (self.is_paused or self.is_over)
        return self._position + is_moving * self.speed * (time.monotonic() - self._set_at)

    @property
    def label(self) -> str:
        if self.is_over:
            return "replay ended"
        return "replay paused" if self.is_paused else f"replay ×{self.speed:g}"

    def jump_to(self, moment: float) -> None:
        self._position, self._set_at = moment, time.monotonic()

    def toggle(self) -> None:
        self.jump_to(self.now)
        self.is_paused = not self.is_paused

    def scale(self, factor: float) -> None:
        self.jump_to(self.now)
        self.speed *= factor

    def end(self) -> None:
        self.jump_to(self.now)
        self.is_over = True
