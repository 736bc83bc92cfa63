"""Reports an external training loop: its run directory, its socket, and the thread that reads its losses."""

import contextlib
import logging
import math
import os
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec

from ..base.advice import error_line, first_line, text_of
from ..base.encoding import encode_json
from ..distributed.cluster import Cluster
from ..explain.programs import KeptStep
from ..spec.config import WatchedRun
from ..training.forks import redirect_to_null
from ..training.step_reports import REPORT_SECONDS, StepReports
from ..training.training_thread import StallTimer, locate
from ..wire import run_directory
from ..wire.event import VERSION
from ..wire.event_log import EventLog
from ..wire.events import EngineStarted, EngineStopped, Event, Failed, LossNotFinite, MemoryMeasured, Printed, Stalled
from ..wire.server import Server

LAST_LOSSES_SECONDS = 2.0
"""Time to wait for the last losses of a loop that failed: its devices may never compute them."""

READ_INTERVAL_SECONDS = 0.02
"""Pause between two reads: steps of a millisecond are read in batches, so that this thread hardly slows them."""

OUTPUT_SECONDS = 0.5
"""Between two reports of what the program prints at least."""
MOST_LINES = 20
"""Lines in such a report; of more, the last ones. The file has all."""
MOST_CHARACTERS = 500
"""Of a line."""

_END = object()
_logger = logging.getLogger("shardtui")


class Reporter:
    """Reads and reports losses in its own thread: a read takes 40 µs, and waiting would delay the loop."""

    def __init__(
        self,
        about: WatchedRun,
        opening: Sequence[Event],
        step: KeptStep | None,
        measure: Callable[[], MemoryMeasured | None],
        steps_done: int,
        output: Path | None = None,
    ) -> None:
        """`opening`: the first events; `step`: kept for viewers that explain it; `output`: the file that the
        program prints to, which the run takes. Raises UserError and OSError if the
        run cannot be reported; no file is left."""
        run_directory.runtime_directory()
        with contextlib.ExitStack() as cleanup:
            self._directory = directory = run_directory.create_numbered(about)
            cleanup.callback(directory.discard)
            self._lock_file = cleanup.enter_context(directory.hold())
            self._keep(step)
            self.about = msgspec.structs.replace(about, run=directory.name)
            self._server = Server(directory.socket, lambda _: self.about.refusal)
            self._log = EventLog(directory.events, self._server.publish)
            self._log.append(EngineStarted(protocol=VERSION, pid=os.getpid(), config=None, watched=self.about))
            self._output = ProgramOutput(output, directory.log) if output else None
            self._server.start()
            cleanup.pop_all()
        for event in opening:
            self._log.append(event)
        self._losses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._process = os.getpid()
        self._reporting = threading.Lock()
        self._has_ended = False
        self._is_over = False
        """Whether reporting has ended: the last event is logged, or this is a forked child."""
        self._is_finite = True
        """Whether the last loss is finite."""
        self._stall = StallTimer()
        self._reports = StepReports(self._log.append, measure, Cluster(), steps_done)
        self._thread = threading.Thread(target=self._read_losses, name="reporter", daemon=True)
        self._thread.start()
        self._detach_in_children()

    def step(self, scalars: Sequence[Any], names: Sequence[str | None], seconds: float | None = None) -> None:
        """`scalars`: the loss, or None, and others, with their names. `seconds`: of a step that has ended; None to
        measure them."""
        if not self._is_over:
            self._losses.put((scalars, names, seconds))

    def publish(self, event: Event, step: KeptStep | None = None) -> None:
        """`step`: in place of the one kept before."""
        with self._reporting:
            if not self._is_over:
                self._keep(step)
                self._log.append(event)

    def _keep(self, step: KeptStep | None) -> None:
        if step:
            self._directory.step.write_bytes(encode_json(step))

    def end(self, error: BaseException | None) -> None:
        if os.getpid() != self._process:
            return  # a forked child left the loop
        self._losses.put(_END)
        self._thread.join(None if error is None else LAST_LOSSES_SECONDS)
        self._end_with(_last_event(error, self._reports.done))
        self._server.close()
        self._log.close()
        self._lock_file.close()

    def _read_losses(self) -> None:
        try:
            while losses := self._next():
                read = _read(losses)
                with self._reporting:
                    if not self._is_over:
                        self._note_losses([loss for loss, _, _ in read])
                        self._reports.add_losses(read)
                self._note_output()
                time.sleep(READ_INTERVAL_SECONDS)
        except BaseException as error:  # of the user's type of loss, perhaps
            _logger.warning("run %s is no longer watched: a loss cannot be read", self.about.run, exc_info=True)
            problem = f"no longer watched: a loss cannot be read: {text_of(error)}"
            self._end_with(Failed(problems=[problem], refused=False))

    def _next(self) -> list[Any]:
        """Waits for losses and returns all that are queued; empty at the end. Meanwhile it reports the losses already
        read: a loop may pause for long, for example to evaluate."""
        while not self._has_ended:
            try:
                found = [self._losses.get(timeout=REPORT_SECONDS)]
            except queue.Empty:
                self._reports.flush()
                self._note_stall()
                self._note_output()
                continue
            while not self._losses.empty():
                found.append(self._losses.get())
            self._has_ended = found[-1] is _END
            if losses := found[: len(found) - self._has_ended]:
                return losses
        return []

    def _note_losses(self, losses: Sequence[float | None]) -> None:
        """Reports the steps at which the loss becomes infinite or NaN."""
        self._stall.progress()
        for step, loss in enumerate(losses, self._reports.done + 1):
            was_finite, self._is_finite = self._is_finite, loss is None or math.isfinite(loss)
            if was_finite and not self._is_finite:
                self._log.append(LossNotFinite(step=step))

    def _note_stall(self) -> None:
        if self._stall.is_due(self._reports.step_seconds):
            where = locate(in_step=True).where
            self.publish(Stalled(seconds=self._stall.seconds, where=where))

    def _note_output(self, is_end: bool = False) -> None:
        if self._output and (printed := self._output.read(is_end)):
            self.publish(printed)

    def _end_with(self, event: Event) -> None:
        self._note_output(is_end=True)
        with self._reporting:
            if not self._is_over:
                self._is_over = True
                self._reports.flush()
                self._log.append(event)

    def _detach_in_children(self) -> None:
        """Detaches forked children, such as data loaders, from the lock and the viewers' connections. Otherwise a child
        that outlives this process would make the run look alive."""
        reference = weakref.ref(self)

        def detach() -> None:
            if reporter := reference():
                reporter._is_over = True
                if not reporter._lock_file.closed:
                    redirect_to_null([reporter._lock_file.fileno(), *reporter._server.descriptors])

        os.register_at_fork(after_in_child=detach)


class ProgramOutput:
    """What a watched program prints, as events of its run: reads the file that it prints to."""

    def __init__(self, file: Path, moved_to: Path) -> None:
        """Moves the file, which the program has open, to the run's directory."""
        file.replace(moved_to)
        self._file = moved_to.open("rb")
        self._rest = b""
        self._last = time.monotonic()

    def read(self, is_end: bool = False) -> Printed | None:
        """Returns the lines since the last report; None if there are none, or they are not due yet."""
        if not is_end and time.monotonic() - self._last < OUTPUT_SECONDS:
            return None
        self._last = time.monotonic()
        *lines, rest = (self._rest + self._file.read()).split(b"\n")
        self._rest = _last_written(rest)
        if is_end and self._rest:
            lines.append(self._rest)
        if not lines:
            return None
        shown = [_last_written(line).rstrip(b"\r") for line in lines[-MOST_LINES:]]
        texts = [line.decode(errors="replace")[:MOST_CHARACTERS] for line in shown]
        return Printed(lines=texts, left_out=len(lines) - len(texts))


def _last_written(line: bytes) -> bytes:
    """Returns what a terminal shows of a line that is written again and again, as by a progress bar."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def _read(losses: list[Any]) -> list[tuple[float | None, dict[str, float], float | None]]:
    """Waits for the arrays and returns the loss, metrics and seconds of each step; NaN for an array that the program
    has deleted."""

    def value(array: Any) -> Any:
        return math.nan if isinstance(array, jax.Array) and array.is_deleted() else array

    found = jax.device_get([[value(array) for array in scalars] for scalars, _, _ in losses])
    return [
        (None if loss is None else _float(loss), dict(zip(names[1:], map(_float, others), strict=True)), seconds)
        for (loss, *others), (_, names, seconds) in zip(found, losses, strict=True)
    ]


def _float(value: Any) -> float:
    """Returns the value of a scalar, or the mean of its values on several devices."""
    return float(value.mean(dtype=float) if getattr(value, "ndim", 0) else value)


def _last_event(error: BaseException | None, step: int) -> Event:
    match error:
        case None:
            return EngineStopped(step=step, reason="finished")
        case KeyboardInterrupt():
            return EngineStopped(step=step, reason="signalled")
        case GeneratorExit() | SystemExit(code=None | 0):
            return EngineStopped(step=step, reason="stopped")
        case _:
            return Failed(problems=[_described(error)], refused=False)


def _described(error: BaseException) -> str:
    """Returns `ValueError: message, at train.py:31`, with the line of the loop: runpy is above it in a module."""
    text = f"exited with status {_status(error)}" if isinstance(error, SystemExit) else error_line(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{text}, at {frames[0].filename}:{frames[0].lineno}" if frames else text


def _status(error: SystemExit) -> str:
    return str(error.code) if isinstance(error.code, int) else f"1: {first_line(text_of(error))}"
