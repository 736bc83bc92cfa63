"""Tells of a loop that is not ours: its run directory, its socket, and the thread that waits for its losses."""

import contextlib
import logging
import os
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import msgspec

from ..base.advice import named
from ..distributed.cluster import Cluster
from ..spec.config import WatchedRun
from ..training.forks import lead_nowhere
from ..training.step_reports import REPORT_SECONDS, StepReports
from ..wire import run_directory
from ..wire.event_log import EventLog
from ..wire.events import EngineStarted, EngineStopped, Event, Failed, MemoryMeasured
from ..wire.server import Server
from ..wire.version import VERSION

PATIENCE_SECONDS = 2.0
"""For the last losses of a loop that failed: its devices may never make them."""

REST_SECONDS = 0.02
"""Between two looks: steps that take a millisecond are read by the dozen, or the thread takes its part of each."""

_END = object()
_logger = logging.getLogger("shardtui")


class Teller:
    """The loop's thread only hands losses over: to read one takes 40 µs, and to wait for one would hold it up."""

    def __init__(
        self, about: WatchedRun, opening: Sequence[Event], measure: Callable[[], MemoryMeasured | None], steps_done: int
    ) -> None:
        """`opening`: what is told first. Raises Invalid and OSError where a run cannot be told of; nothing is left."""
        run_directory.runtime_directory()
        with contextlib.ExitStack() as undone:
            directory = run_directory.create_numbered(about)
            undone.callback(directory.discard)
            self._lock_file = undone.enter_context(directory.hold())
            self.about = msgspec.structs.replace(about, run=directory.name)
            self._server = Server(directory.socket, lambda _: self.about.refusal)
            self._log = EventLog(directory.events, self._server.publish)
            self._log.append(EngineStarted(protocol=VERSION, pid=os.getpid(), config=None, watched=self.about))
            self._server.start()
            undone.pop_all()
        for event in opening:
            self._log.append(event)
        self._losses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._process = os.getpid()
        self._telling = threading.Lock()
        self._has_ended = False
        """The thread has seen the end."""
        self._is_over = False
        self._reports = StepReports(self._log.append, measure, Cluster(), steps_done)
        self._thread = threading.Thread(target=self._tell, name="teller", daemon=True)
        self._thread.start()
        self._leave_forks_out()

    def step(self, loss: Any) -> None:
        """Never waits."""
        if not self._is_over:
            self._losses.put(loss)

    def end(self, error: BaseException | None) -> None:
        """Tells of the steps that were handed over and why the loop ended."""
        if os.getpid() != self._process:
            return  # a forked child left the loop
        self._losses.put(_END)
        self._thread.join(None if error is None else PATIENCE_SECONDS)
        self._end_with(_last_event(error, self._reports.done))
        self._server.close()
        self._log.close()
        self._lock_file.close()

    def _tell(self) -> None:
        try:
            while losses := self._next():
                values = [float(value) for value in jax.device_get(losses)]
                with self._telling:
                    if not self._is_over:
                        self._reports.add_read(values)
                time.sleep(REST_SECONDS)
        except Exception as error:
            _logger.warning("run %s is not watched any more: a loss cannot be read", self.about.run, exc_info=True)
            self._end_with(Failed(problems=[f"not watched any more: a loss cannot be read: {error}"], refused=False))

    def _next(self) -> list[Any]:
        """All that was handed over, once there is something; nothing in the end. What is known is told meanwhile: a
        loop that evaluates may take long."""
        while not self._has_ended:
            try:
                found = [self._losses.get(timeout=REPORT_SECONDS)]
            except queue.Empty:
                self._reports.settle()
                continue
            while not self._losses.empty():
                found.append(self._losses.get())
            self._has_ended = found[-1] is _END
            if losses := found[: len(found) - self._has_ended]:
                return losses
        return []

    def _end_with(self, event: Event) -> None:
        with self._telling:
            if not self._is_over:
                self._is_over = True
                self._reports.settle()
                self._log.append(event)

    def _leave_forks_out(self) -> None:
        """A child that is forked, to load data say, would hold the lock and the viewers' connections when we are gone:
        nobody could see that."""
        reference = weakref.ref(self)

        def let_go() -> None:
            if teller := reference():
                teller._is_over = True
                if not teller._lock_file.closed:
                    lead_nowhere([teller._lock_file.fileno(), *teller._server.descriptors])

        os.register_at_fork(after_in_child=let_go)


def _last_event(error: BaseException | None, step: int) -> Event:
    match error:
        case None:
            return EngineStopped(step=step, reason="finished")
        case KeyboardInterrupt():
            return EngineStopped(step=step, reason="signalled")
        case GeneratorExit() | SystemExit(code=None | 0):
            return EngineStopped(step=step, reason="stopped")
        case _:
            return Failed(problems=[_told(error)], refused=False)


def _told(error: BaseException) -> str:
    """`ValueError: what it says, at train.py:31`: the line of the loop."""
    frames = traceback.extract_tb(error.__traceback__, limit=1)
    return f"{named(error)}, at {frames[0].filename}:{frames[0].lineno}" if frames else named(error)
