"""A thread that watches the training thread: it reports stalls and hangs, and ends a run that does not stop in time."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base.output import say
from ..base.stacks import append_stacks, dump_on_signal
from ..distributed.cluster import Cluster
from ..distributed.hang import hang_words, waiting_words, words
from ..wire.ending import Ending, write_ending
from ..wire.events import (
    CheckpointSaved,
    Event,
    Failed,
    HostsMeasured,
    ProfileWriting,
    Restored,
    Stalled,
    StepsDone,
    TrainingStarted,
)
from ..wire.hosts import HostStatus
from ..wire.inbox import Inbox
from .training_thread import StallTimer, TrainingThread, locate

STARTING_SECONDS = 20.0
"""Time to stop for a run that has not trained yet: there is nothing to save, but a busy machine may still be
importing jax."""
POLL_SECONDS = 0.5
STACKS_SECONDS = 2.0
"""How long a supervised process must have been stuck before it ends: the others write their stacks."""
FLUSH_SECONDS = 0.2

SIGNALS = {signal.SIGTERM, signal.SIGINT}


class HangWatch:
    """Compares what the processes of a run do. Used by the watchdog's thread."""

    def __init__(self, cluster: Callable[[], Cluster], stacks: Path, beat: Path | None) -> None:
        """`stacks`: the file for the stacks of all processes. `beat`: the file by which the supervisor sees that Python
        runs in this process, and which gets its stacks if not; None without a supervisor."""
        self.thread = TrainingThread()
        self.stacks = stacks
        self.statuses: list[HostStatus] = []
        self._cluster = cluster
        self._beat: int | None = None
        self._since: float | None = None
        """When a process was first found to be stuck; None if none is."""
        if beat:
            with contextlib.suppress(OSError):
                self._beat = os.open(beat, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        dump_on_signal(2 if self._beat is None else self._beat)

    def look(self) -> bool:
        """Returns whether a process has become stuck. Ends this one if it is the one, and is to be restarted."""
        cluster = self._cluster()
        cluster.beat = self._beat
        activity = self.thread.look(cluster.begun, cluster.in_step)
        cluster.mark(activity.in_step)
        self.statuses = cluster.share(activity)
        own = next((status for status in self.statuses if status.process == cluster.process), None)
        if not own or not own.verdict:
            self._since = None
            return False
        if is_new := self._since is None:
            self._since = time.monotonic()
            self._write_stacks(own)
        is_certain = own.verdict == "stuck" and activity.is_late and time.monotonic() - self._since >= STACKS_SECONDS
        if is_certain and self._beat is not None:
            self._end(own)
        return is_new

    def location(self) -> str:
        """Returns where this process is, or another one that it waits for."""
        own = locate(self._cluster().in_step)
        others = (status for status in self.statuses if own.waits and not status.activity.waits)
        other = next((status for status in others if status.activity.where), None)
        return f"{other.activity.where} on process {other.process}" if other else own.where

    def _write_stacks(self, own: HostStatus) -> None:
        header = f"process {own.process} on {socket.gethostname()}, pid {os.getpid()}: {words(own)}"
        try:
            append_stacks(self.stacks, header)
        except OSError as error:
            say(f"{self.stacks}: stacks cannot be written: {error.strerror}")

    def _end(self, own: HostStatus) -> None:
        problem = words(own) + waiting_words(self.statuses)
        say(f"{problem}: stacks in {self.stacks}")
        write_ending(Ending(kind="stuck", step=own.activity.step - 1, problems=[problem]))
        os._exit(1)


class Watchdog:
    """Watches the training thread through the events that `note` is called with. SIGTERM and SIGINT are handled here:
    the training thread may be in code that lets no Python handler run."""

    def __init__(
        self,
        inbox: Inbox,
        publish: Callable[[Event], None],
        stop: Callable[[], object],
        stop_seconds: float | None,
        hangs: HangWatch,
    ) -> None:
        """Call it in the main thread of a process. `publish` is called with events and `stop` on a signal, both in
        the watchdog's thread. `stop_seconds`: time to stop, None for no limit."""
        self.is_signalled = False
        self._inbox, self._publish, self._stop = inbox, publish, stop
        self._stop_seconds, self._hangs = stop_seconds, hangs
        self._stall = StallTimer()
        self._step_seconds = 0.0
        self.done = self._saved = 0
        self._has_trained = self._is_writing = False
        self._signals, self._wakeup = socket.socketpair()
        self._signals.settimeout(POLL_SECONDS)
        self._wakeup.setblocking(False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # without a handler of its own Python writes nothing
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_restore_signals)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def note(self, event: Event) -> None:
        self._stall.progress()
        self._hangs.thread.note(event)
        self._is_writing = isinstance(event, ProfileWriting)
        match event:
            case StepsDone():
                self.done, self._step_seconds = event.step, max(event.step_seconds, default=0.0)
            case TrainingStarted():
                self._has_trained = True
            case CheckpointSaved():
                self._saved = event.step
            case Restored():
                self._saved = self.done = event.step
            case _:
                pass

    def _watch(self) -> None:
        while True:
            self._handle_signals()
            self._end_if_late()
            is_new = self._hangs.look()
            is_slow = self._stall.is_due(self._step_seconds, self._inbox.is_idle)
            if (is_slow and not self._is_writing) or is_new:  # the status line counts the seconds of a trace's writing
                self._report(self._stall.seconds, self._hangs.statuses)

    def _report(self, seconds: float, statuses: Sequence[HostStatus]) -> None:
        verdict = hang_words(statuses)
        if verdict and len(statuses) > 1:
            self._publish(HostsMeasured(hosts=list(statuses)))
        stacks = str(self._hangs.stacks) if verdict else ""
        self._publish(Stalled(seconds=seconds, where=self._hangs.location(), verdict=verdict, stacks=stacks))

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
        problem = (
            f"ended {limit:g} s after the request to stop, while the training thread was in {self._hangs.location()}: "
        )
        if self._has_trained:
            since = f"step {self._saved:,}, the last checkpoint," if self._saved else "the start"
            problem += (
                f"all steps after {since} are lost, up to step {self.done:,}: if steps and saves take "
                "longer, increase --stop-timeout"
            )
        else:
            problem += "no step had been trained"
        say(problem)
        self._publish(Failed(problems=[problem], refused=False))
        write_ending(Ending(kind="late", step=self.done, problems=[problem]))
        time.sleep(FLUSH_SECONDS)
        os._exit(1)


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
