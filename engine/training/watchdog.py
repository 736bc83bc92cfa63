"""A thread that watches the training thread: it reports stalls, and ends a run that does not stop in time."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ..base.installed import ENGINE
from ..wire.events import CheckpointSaved, Event, Failed, Restored, Stalled, StepsDone, TrainingStarted
from ..wire.inbox import Inbox

STALL_SECONDS = 30.0
"""Time without an event (step, save, phase of a compilation) that is a stall, unless training waits for a command."""
USER_STALL_SECONDS = 5.0
"""The same if the training thread is in the user's code, here or in another process."""
STALL_STEPS = 3
"""A stall takes longer than this many steps, by the slowest of the last report."""
STARTING_SECONDS = 20.0
"""Time to stop for a run that has not trained yet: there is nothing to save, but a busy machine may still be
importing jax."""
POLL_SECONDS = 0.5
"""Time between two checks."""
FLUSH_SECONDS = 0.2
"""Time for the last event to reach viewers before the process exits."""
LIBRARIES = ("-packages/", "/lib/python3", "<")
"""Parts of the paths of installed code; `<` as in `<frozen importlib>`."""
JAX = "/jax/"
"""Part of the paths of jax's own code."""

SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Watchdog:
    """Watches the training thread through the events that `note` is called with.

    SIGTERM and SIGINT are handled here: the training thread may be in code that lets no Python handler run.
    """

    def __init__(
        self,
        inbox: Inbox,
        publish: Callable[[Event], None],
        stop: Callable[[], object],
        stop_seconds: float | None,
        user_directory: str | None,
        elsewhere: Callable[[], str | None] = lambda: None,
    ) -> None:
        """To be called in the main thread of a process.

        `publish` is called with events and `stop` on a signal, both in the watchdog's thread. `stop_seconds`: time to
        stop, None for no limit. `user_directory`: directory of the user's code, None if there is none. `elsewhere`
        returns where another process has stalled, None if none has.
        """
        self.is_signalled = False
        self._inbox = inbox
        self._publish = publish
        self._stop = stop
        self._stop_seconds = stop_seconds
        self._user_directory = user_directory
        self._elsewhere = elsewhere
        self._last = time.monotonic()
        self._step_seconds = 0.0
        self._done = self._saved = 0
        self._has_trained = False
        self._signals, self._wakeup = socket.socketpair()
        self._signals.settimeout(POLL_SECONDS)
        self._wakeup.setblocking(False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # without a handler of its own Python writes nothing
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_restore_signals)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def done(self) -> int:
        """Number of steps that are reported as done."""
        return self._done

    def note(self, event: Event) -> None:
        """Records an event of the training thread."""
        self._last = time.monotonic()
        match event:
            case StepsDone():
                self._done, self._step_seconds = event.step, max(event.step_seconds, default=0.0)
            case TrainingStarted():
                self._has_trained = True
            case CheckpointSaved() | Restored():
                self._saved = event.step
                self._done = max(self._done, event.step)
            case _:
                pass

    def _watch(self) -> None:
        reported = 0.0
        while True:
            self._handle_signals()
            self._end_if_late()
            still = 0.0 if self._inbox.is_idle else time.monotonic() - self._last
            if still < max(USER_STALL_SECONDS, STALL_STEPS * self._step_seconds):
                reported = 0.0
            elif still >= 2 * reported and (place := self._user_location() or self._stalled_location(still)):
                reported = still
                self._publish(Stalled(seconds=still, where=place))

    def _handle_signals(self) -> None:
        try:
            numbers = self._signals.recv(64)
        except TimeoutError:
            return
        if SIGNALS & set(numbers):
            self.is_signalled = True
            self._stop()

    def _end_if_late(self) -> None:
        stop_requested_at, limit = self._inbox.limited_stop_at, self._stop_seconds
        if stop_requested_at is None or limit is None:
            return
        if not self._has_trained:
            limit = min(limit, STARTING_SECONDS)
        if time.monotonic() - stop_requested_at < limit:
            return
        problem = f"ended {limit:g} s after the request to stop, while the training thread was in {self._location()}: "
        if self._has_trained:
            since = f"step {self._saved:,}, the last checkpoint," if self._saved else "the start"
            problem += (
                f"all steps after {since} are lost, up to step {self._done:,}: if steps and saves take "
                "longer, increase --stop-timeout"
            )
        else:
            problem += "no step had been trained"
        print(f"shardtui: {problem}", file=sys.stderr, flush=True)
        self._publish(Failed(problems=[problem], refused=False))
        time.sleep(FLUSH_SECONDS)
        os._exit(1)

    def _location(self) -> str:
        """Returns the location of the user's code, in whichever thread it runs; else that of the training thread."""
        return self._user_location() or location(sys._current_frames())

    def _user_location(self) -> str | None:
        here = user_location(sys._current_frames(), self._user_directory) if self._user_directory else None
        return here or self._elsewhere()

    def _stalled_location(self, still: float) -> str | None:
        return location(sys._current_frames()) if still >= STALL_SECONDS else None


def _restore_signals() -> None:
    """Restores the default signal handlers in a process that the user's code has forked."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def user_location(frames: dict[int, FrameType], directory: str) -> str | None:
    """Returns `function (file:line)` of the innermost frame in the user's directory, or None if there is none.

    Only the main thread counts and threads in which jax calls the user's code: training waits for no other thread.
    """
    main, *others = _stacks(frames)
    awaited = (main, *(stack for stack in others if any(JAX in _file(at) for at in stack)))
    theirs = (at for stack in awaited for at in stack if _is_below(directory, at))
    return next((_named(at, f"{directory}/") for at in theirs), None)


def location(frames: dict[int, FrameType]) -> str:
    """Returns `function (file:line)` of the innermost frame of the main thread that is not in a library."""
    stack = _stacks(frames)[0]
    return _named(next((at for at in stack if not _is_library(at)), stack[0]), f"{ENGINE}/")


def _stacks(frames: dict[int, FrameType]) -> list[list[FrameType]]:
    """Returns the frames of each thread, innermost first; the main thread comes first."""
    main = threading.main_thread().ident
    return [list(_stack(frames[ident])) for ident in sorted(frames, key=lambda ident: ident != main)]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the frames of one thread, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_library(frame: FrameType) -> bool:
    return any(mark in _file(frame) for mark in LIBRARIES)


def _is_below(directory: str, frame: FrameType) -> bool:
    """Returns whether the frame is in a file of the directory that is neither shardtui's nor an installed library's."""
    file = _file(frame)
    within = file.startswith(f"{directory}/") and not file.startswith(str(ENGINE))
    return within and not any(mark in file.removeprefix(directory) for mark in LIBRARIES)


def _named(frame: FrameType, root: str) -> str:
    return f"{frame.f_code.co_name} ({_file(frame).removeprefix(root)}:{frame.f_lineno})"
