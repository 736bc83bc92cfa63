"""Pausing, resuming and single steps."""

from collections.abc import Callable

from ..wire.events import Event, Paused, Resumed
from .progress import Progress


class Pausing:
    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self.is_paused = False
        self._single_steps = 0

    @property
    def runs_next_step(self) -> bool:
        return not self.is_paused or self._single_steps > 0

    def pause(self, at: Progress, problem: str | None = None) -> None:
        """Waits for the step in flight, then pauses; `problem` says why if no viewer requested it."""
        at.reports.flush()
        self.is_paused = True
        self._publish(Paused(step=at.done, problem=problem))

    def resume(self, at: Progress) -> None:
        self.is_paused, self._single_steps = False, 0
        at.reports.restart_clock()
        self._publish(Resumed(step=at.done))

    def step_once(self, at: Progress) -> None:
        if not self.is_paused:
            self.pause(at)
        self._single_steps += 1

    def begin_step(self, at: Progress) -> None:
        """Counts a single step down; the time since the previous one is not part of it."""
        if self.is_paused:
            self._single_steps -= 1
            at.reports.restart_clock()
