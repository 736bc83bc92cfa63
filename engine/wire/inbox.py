"""Commands on their way to the training thread: as many as it can obey, however many are sent."""

import queue
import threading
import time
from collections.abc import Callable

from .commands import AnyCommand, PreparePreset, ProfileSteps, RestoreCheckpoint, StepOnce, Stop, SwitchPreset

MOST_WAITING = 256
"""Commands that may wait; what comes on top is refused, but for `Stop`."""
REPLACING = (SwitchPreset, PreparePreset, RestoreCheckpoint, ProfileSteps)
"""Of these only the latest counts."""


class Inbox:
    """`put` may be called in any thread and in a signal handler, all else in the training thread alone."""

    def __init__(self) -> None:
        self.stopped_at: float | None = None
        """By the monotonic clock, when it was first told to stop."""
        self.hurried_at: float | None = None
        """The same, with a limit to how long that may take."""
        self.is_awaited = False
        """The training thread has nothing to do but to wait for a command, or for what it will be woken for."""
        self._waiting: dict[object, AnyCommand] = {}
        self._lock = threading.Lock()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, command: AnyCommand) -> str | None:
        """Why it is refused; None where it will be obeyed."""
        if isinstance(command, Stop):  # takes no lock, which the thread that a signal interrupts may hold
            self.stopped_at = self.stopped_at or time.monotonic()
            if not command.unhurried:
                self.hurried_at = self.hurried_at or time.monotonic()
        elif not self._add(command):
            return f"{MOST_WAITING} commands wait already: the engine obeys them between steps: send fewer"
        self.wake()
        return None

    def wake(self) -> None:
        """Whoever waits for a command looks around."""
        if self._wakes.empty():
            self._wakes.put(None)

    def take(self, block: bool) -> list[AnyCommand]:
        """What to do before the next step: `Stop` alone, or one command of each kind in the order in which they came.
        The others wait for the step after. `block`: if there is none, waits until one comes or it is woken."""
        if block and not self._waiting:
            self._wait()
        if self.stopped_at is not None:
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

    def is_stopped_before(self, is_done: Callable[[], bool], look: Callable[[], None]) -> bool:
        """Waits until it is told to stop, or until what it is woken for is done. Calls `look` whenever it wakes."""
        while self.stopped_at is None and not is_done():
            self._wait()
            look()
        return self.stopped_at is not None

    def _wait(self) -> None:
        self.is_awaited = True
        self._wakes.get()
        self.is_awaited = False

    def _add(self, command: AnyCommand) -> bool:
        """Equal commands are one, and of some kinds only the latest waits. False where too many do."""
        key = type(command) if isinstance(command, REPLACING) else command
        if isinstance(command, StepOnce):
            key = object()
        with self._lock:
            self._waiting.pop(key, None)
            if len(self._waiting) >= MOST_WAITING:
                return False
            self._waiting[key] = command
        return True
