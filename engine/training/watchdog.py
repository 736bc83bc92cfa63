"""A thread that watches the training thread: it reports stalls, and ends a run that does not stop in time."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from ..wire.events import CheckpointSaved, Event, Failed, HostsMeasured, Restored, Stalled, StepsDone, TrainingStarted
from ..wire.hosts import HostStatus
from ..wire.inbox import Inbox
from .stuck_watch import StuckWatch, words

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
        stuck: StuckWatch,
    ) -> None:
        """To be called in the main thread of a process.

        `publish` is called with events and `stop` on a signal, both in the watchdog's thread. `stop_seconds`: time to
        stop, None for no limit. `stuck` finds out which process is stuck.
        """
        self.is_signalled = False
        self._inbox = inbox
        self._publish = publish
        self._stop = stop
        self._stop_seconds = stop_seconds
        self._stuck = stuck
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
        self._stuck.thread.note(event)
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
        reported, was_stuck = 0.0, False
        while True:
            self._handle_signals()
            self._end_if_late()
            statuses = self._stuck.look()
            still = 0.0 if self._inbox.is_idle else time.monotonic() - self._last
            is_new, was_stuck = bool(statuses) and not was_stuck, bool(statuses)
            if not is_new and still < max(USER_STALL_SECONDS, STALL_STEPS * self._step_seconds):
                reported = 0.0
            elif is_new or still >= 2 * reported:
                is_certain = bool(statuses) or still >= STALL_SECONDS
                if place := self._user_location() or (self._stuck.thread.location() if is_certain else None):
                    reported = still
                    self._report(still, place, statuses)

    def _report(self, seconds: float, place: str, statuses: list[HostStatus]) -> None:
        """Reports a stall, and the statuses of all processes if one is stuck."""
        if len(statuses) > 1:
            self._publish(HostsMeasured(hosts=statuses))
        stacks = str(self._stuck.stacks) if statuses else ""
        self._publish(Stalled(seconds=seconds, where=place, verdict=words(statuses), stacks=stacks))

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
        problem = f"ended {limit:g} s after the request to stop, while the training thread was in {self._location}: "
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

    @property
    def _location(self) -> str:
        """Returns the location of the user's code, in whichever process it runs; else that of the training thread."""
        return self._user_location() or self._stuck.thread.location()

    def _user_location(self) -> str | None:
        return self._stuck.thread.user_location() or self._stuck.stalled_elsewhere()


def _restore_signals() -> None:
    """Restores the default signal handlers in a process that the user's code has forked."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
