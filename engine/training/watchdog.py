"""A thread that looks at the training thread from outside: it reports a stall, and ends a run that does not end."""

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
"""Without an event, a step, a save, a phase of a compilation, though nothing is waited for."""
USER_SECONDS = 5.0
"""The same where the training thread waits for the user's code, here or in another process."""
LONG_STEPS = 3
"""Steps of the last report's length that are no stall."""
STARTING_SECONDS = 20.0
"""In which a run ends that was told to stop before it trained: there is nothing to save, and a busy machine may
still be loading jax."""
LOOK_SECONDS = 0.5
FAREWELL_SECONDS = 0.2
"""For viewers to hear of the end."""
LIBRARIES = ("-packages/", "/lib/python3", "<")
JAX = "/jax/"


SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Watchdog:
    """`note` is called with every event. SIGTERM and SIGINT are heard here: the training thread may be in code that
    lets no handler run."""

    def __init__(
        self,
        inbox: Inbox,
        publish: Callable[[Event], None],
        stop: Callable[[], object],
        stop_seconds: float | None,
        user_directory: str | None,
        elsewhere: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`stop` is called where a signal comes, `publish` with what is reported, both in a thread of its own. For the
        main thread of a process. `user_directory`: where the user's code is, if there is some. `elsewhere`: where
        another process has been for a while."""
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
        self._signals.settimeout(LOOK_SECONDS)
        self._wakeup.setblocking(False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # without a handler of its own Python writes nothing
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_give_signals_back)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def note(self, event: Event) -> None:
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
            self._hear()
            self._end_if_late()
            still = 0.0 if self._inbox.is_awaited else time.monotonic() - self._last
            if still < max(USER_SECONDS, LONG_STEPS * self._step_seconds):
                reported = 0.0
            elif still >= 2 * reported and (place := self._users_place() or self._own_place(still)):
                reported = still
                self._publish(Stalled(seconds=still, where=place))

    def _hear(self) -> None:
        try:
            numbers = self._signals.recv(64)
        except TimeoutError:
            return
        if SIGNALS & set(numbers):
            self.is_signalled = True
            self._stop()

    def _end_if_late(self) -> None:
        stopped_at, limit = self._inbox.hurried_at, self._stop_seconds
        if stopped_at is None or limit is None:
            return
        if not self._has_trained:
            limit = min(limit, STARTING_SECONDS)
        if time.monotonic() - stopped_at < limit:
            return
        problem = f"ended {limit:g} s after it was told to stop, while the training thread was in {self._where()}: "
        if self._has_trained:
            since = f"step {self._saved:,}, the last checkpoint," if self._saved else "the start"
            problem += (
                f"all after {since} is lost; the last step reported is {self._done:,}: where steps and saves take "
                "longer, give a longer --stop-timeout"
            )
        else:
            problem += "nothing was trained yet"
        print(f"shardtui: {problem}", file=sys.stderr, flush=True)
        self._publish(Failed(problems=[problem], refused=False))
        time.sleep(FAREWELL_SECONDS)
        os._exit(1)

    def _where(self) -> str:
        """Where the user's code is, in whichever thread; else the training thread."""
        return self._users_place() or where(sys._current_frames())

    def _users_place(self) -> str | None:
        here = users_place(sys._current_frames(), self._user_directory) if self._user_directory else None
        return here or self._elsewhere()

    def _own_place(self, still: float) -> str | None:
        return where(sys._current_frames()) if still >= STALL_SECONDS else None


def _give_signals_back() -> None:
    """In a process that the user's code has forked: it ends by them, as any other does."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def users_place(frames: dict[int, FrameType], directory: str) -> str | None:
    """`function (file:line)`: the innermost place in the user's directory, of the main thread or of one in which jax
    calls the user's code. Threads of the user's own are waited for by nobody."""
    main, *others = _stacks(frames)
    awaited = (main, *(stack for stack in others if any(JAX in _file(at) for at in stack)))
    theirs = (at for stack in awaited for at in stack if _is_below(directory, at))
    return next((_named(at, f"{directory}/") for at in theirs), None)


def where(frames: dict[int, FrameType]) -> str:
    """`function (file:line)`: the innermost place of the main thread that is no library's."""
    stack = _stacks(frames)[0]
    return _named(next((at for at in stack if not _is_library(at)), stack[0]), f"{ENGINE}/")


def _stacks(frames: dict[int, FrameType]) -> list[list[FrameType]]:
    """Of each thread, from the innermost out; the main thread's first."""
    main = threading.main_thread().ident
    return [list(_stack(frames[ident])) for ident in sorted(frames, key=lambda ident: ident != main)]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost out."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_library(frame: FrameType) -> bool:
    return any(mark in _file(frame) for mark in LIBRARIES)


def _is_below(directory: str, frame: FrameType) -> bool:
    """In a file of theirs: neither ours nor a library's that is installed there."""
    file = _file(frame)
    within = file.startswith(f"{directory}/") and not file.startswith(str(ENGINE))
    return within and not any(mark in file.removeprefix(directory) for mark in LIBRARIES)


def _named(frame: FrameType, root: str) -> str:
    return f"{frame.f_code.co_name} ({_file(frame).removeprefix(root)}:{frame.f_lineno})"
