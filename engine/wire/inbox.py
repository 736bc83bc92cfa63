"""A bounded queue of commands for the training thread."""

import queue
import threading
import time
from collections.abc import Callable

from .commands import AnyCommand, PreparePreset, ProfileSteps, RestoreCheckpoint, StepOnce, Stop, SwitchPreset

MAX_WAITING = 256
"""Commands that may wait; further ones are refused, except `Stop`."""
REPLACING = (SwitchPreset, PreparePreset, RestoreCheckpoint, ProfileSteps)
"""Kinds of which only the latest command is kept."""


class Inbox:
    """A command queue. `put` may be called from any thread or signal handler, all else from the training thread."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.limited_stop_at: float | None = None
        """Monotonic time of the first `Stop` to which --stop-timeout applies; None before."""
        self.is_idle = False
        """True while the training thread has nothing to do but wait for a command or for `wake`."""
        self._waiting: dict[object, AnyCommand] = {}
        self._lock = threading.Lock()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, command: AnyCommand) -> str | None:
        """Adds a command. Returns None, or why the command is refused."""
        if isinstance(command, Stop):  # takes no lock: the thread that the signal interrupts may hold it
            self.is_stopping = True
            if not command.unhurried:
                self.limited_stop_at = self.limited_stop_at or time.monotonic()
        elif not self._add(command):
            return f"{MAX_WAITING} commands are already waiting; the engine runs them between steps: send fewer"
        self.wake()
        return None

    def wake(self) -> None:
        if self._wakes.empty():
            self._wakes.put(None)

    def take(self, block: bool) -> list[AnyCommand]:
        """Returns the commands to run before the next step: `Stop` alone, or one of each kind, in order of arrival.

        The others stay in the queue. With `block`, an empty queue is waited for until a command arrives or `wake`.
        """
        if block and not self._waiting:
            self._wait()
        if self.is_stopping:
            return [Stop()]
        with self._lock:
            taken: dict[object, AnyCommand] = {}
            kinds: set[type[AnyCommand]] = set()
            for key, command in self._waiting.items():
                if type(command) in kinds:
                    break
                taken[key] = command
                kinds |= {type(command)} - {StepOnce}
            for key in taken:
                del self._waiting[key]
        return list(taken.values())

    def is_stopped_before(self, is_done: Callable[[], bool], on_wake: Callable[[], None]) -> bool:
        """Waits for a `Stop` or `is_done()`; calls `on_wake` after each wake-up. Returns True if there was a `Stop`."""
        while not self.is_stopping and not is_done():
            self._wait()
            on_wake()
        return self.is_stopping

    def _wait(self) -> None:
        self.is_idle = True
        self._wakes.get()
        self.is_idle = False

    def _add(self, command: AnyCommand) -> bool:
        """Adds a command; replaces an equal one, or one of the same kind if `REPLACING`. False if there is no room."""
        key = type(command) if isinstance(command, REPLACING) else command
        if isinstance(command, StepOnce):
            key = object()
        with self._lock:
            self._waiting.pop(key, None)
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting[key] = command
        return True
