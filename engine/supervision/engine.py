"""The engine processes that one supervisor has started: how signals stop them, and whether they are started again."""

import contextlib
import math
import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..base.output import Relay
from ..base.processes import STOPPED, Clock, Deadline, StopClock, is_stopped, wait_for
from ..base.regular_file import append_regular
from ..base.stacks import DUMP_SIGNAL, append_stacks
from ..spec.config import RunConfig
from ..wire.ending import Ending, RecordedProcess, unrecorded
from ..wire.run_directory import RunDirectory

SETTLE_SECONDS = 5.0
"""Time for the other processes to end after one has failed: they are informed, and record why they end."""
CLOSING_SECONDS = 40.0
"""The same after one has ended in order: process 0 waits 30 s for the others."""
STOP_MARGIN_SECONDS = 60.0
"""Time on top of --stop-timeout, with which they end themselves: other processes 10 s later than process 0, which waits
30 s for them."""
STACKS_SECONDS = 2.0
SILENT_SECONDS = 20.0
"""A process in which Python has not run for so long is ended, in the middle of a step…"""
LONG_SILENT_SECONDS = 300.0
"""…or of anything else, such as a compilation."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
WINDOW_SECONDS = 3600.0
SAME_FAULTS = 3
"""An engine that ends in the same way after the same step so often in a row is not started again."""


class ProcessHealth:
    def __init__(self, pid: int, beat: Path) -> None:
        """`beat`: the file in which the process writes whether it is in a step, at least twice a second."""
        self.beat, self._pid = beat, pid
        self._stopped, self._clock = StopClock(pid), Clock()
        self._silent = 0.0
        """Seconds for which it has not written."""

    def problem(self) -> str | None:
        """Returns why the process cannot go on; None if it can. Poll it."""
        with contextlib.suppress(OSError):
            self._silent = self._clock.unchanged(self.beat.stat().st_mtime_ns)
        if self._stopped.is_over():
            return STOPPED
        if self._silent < SILENT_SECONDS or is_stopped(self._pid):
            return None
        if self._silent >= LONG_SILENT_SECONDS or self.written().startswith("step"):
            return f"stuck for {self._silent:.0f} s in native code that keeps Python from running"
        return None

    def written(self) -> str:
        """Returns what is in its file: `step` or `else`, or its stacks, once it has been asked for them."""
        with contextlib.suppress(OSError):
            return self.beat.read_text(errors="replace")
        return ""


@dataclass(frozen=True)
class Child:
    process: int
    engine: RecordedProcess
    health: ProcessHealth

    def send_signal(self, number: signal.Signals) -> None:
        self.engine.popen.send_signal(number)  # only if it has not ended


class Engine:
    """The processes of one attempt on this machine. They end if this process does."""

    def __init__(
        self, directory: RunDirectory, config: RunConfig, commands: Mapping[int, Sequence[str]], has_logs: bool = True
    ) -> None:
        """`commands` by process index. `has_logs`: whether their output goes to the run's logs; else it is relayed to
        stderr. Raises OSError and UserError; then none is left."""
        self._directory, self._config, self._has_logs = directory, config, has_logs
        self._settled_at: float | None = None
        self._deadline: Deadline | None = None
        """Until when they may end after a request to stop; None before it, or without a limit."""
        self._killed: set[int] = set()
        """Processes that were killed from here, because another one had ended."""
        self._dead: dict[int, Ending] = {}
        """Processes that were killed because they could not go on."""
        self._children: list[Child] = []
        with contextlib.ExitStack() as opened:
            self._relay = opened.enter_context(contextlib.closing(Relay()))
            theirs, ours = os.pipe()
            opened.callback(os.close, ours)
            opened.callback(self.kill)
            try:
                for process, command in commands.items():
                    self._children.append(self._start(process, command, theirs))
            finally:
                os.close(theirs)
            self._opened = opened.pop_all()

    def _start(self, process: int, command: Sequence[str], stdin: int) -> Child:
        (beat := self._directory.beat(process)).unlink(missing_ok=True)
        log, relayed = self._directory.log_of(process), contextlib.nullcontext(self._relay.descriptor)
        with append_regular(log) if self._has_logs else relayed as file:
            engine = RecordedProcess(command, stdin=stdin, stdout=file, stderr=file)
        return Child(process, engine, ProcessHealth(engine.pid, beat))

    def ended(self) -> dict[int, Ending] | None:
        """Returns how each process ended, once all have; None before. Ends those that do not end by themselves. The
        processes that had to be ended after another are left out: what ended the engine is known from the others. To be
        called all the time, as it also looks whether they can go on."""
        for child in self._living():
            if child.process not in self._dead and (problem := child.health.problem()):
                self._end_dead(child, problem)
        living = self._living()
        if self._deadline and (problem := self._deadline.problem(child.engine.pid for child in living)):
            self._end_late(living, problem)
        gone = [child for child in self._children if child.engine.has_ended]
        if not gone:
            return None
        if len(gone) < len(self._children):
            self._end_rest(gone)
            return None
        self._opened.close()
        for child in self._children:
            with contextlib.suppress(OSError):
                child.health.beat.unlink(missing_ok=True)
        by_themselves = [child for child in self._children if child.process not in self._killed] or self._children
        return {child.process: self._ending(child) for child in by_themselves}

    def _living(self) -> list[Child]:
        return [child for child in self._children if not child.engine.has_ended]

    def _end_rest(self, gone: Sequence[Child]) -> None:
        """Kills the other processes at once if one was killed or stuck, else if they do not end in time."""
        kinds = {self._ending(child).kind for child in gone}
        if kinds & {"killed", "stuck"}:
            limit = 0.0
        else:
            limit = SETTLE_SECONDS if kinds & {"failed", "refused", "lost", "blocked"} else CLOSING_SECONDS
        self._settled_at = self._settled_at or time.monotonic()
        if time.monotonic() - self._settled_at >= limit:
            self.kill()

    def stop(self) -> None:
        """Lets the processes end in order, and kills them if they are too late: those that a signal has stopped are
        continued."""
        for child in self._living():
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGCONT)
        limit = self._config.stop_seconds
        self._deadline = Deadline(math.inf if limit is None else limit + STOP_MARGIN_SECONDS)

    def kill(self) -> None:
        for child in self._living():
            if is_stopped(child.engine.pid):  # why the others have ended
                self._dead.setdefault(child.process, Ending(kind="stuck", problems=[STOPPED]))
            else:
                self._killed.add(child.process)
            child.send_signal(signal.SIGKILL)

    def _end_late(self, late: Sequence[Child], problem: str) -> None:
        self._deadline = None
        for child in late:
            self._dead[child.process] = Ending(kind="stuck", problems=[f"{problem}: killed without saving"])
            child.send_signal(signal.SIGKILL)

    def _end_dead(self, child: Child, problem: str) -> None:
        """Kills a process that cannot go on, after it has written its stacks if it can."""
        self._dead[child.process] = Ending(kind="stuck", problems=[problem])
        popen = child.engine.popen
        if problem != STOPPED:
            popen.send_signal(DUMP_SIGNAL)
            wait_for(popen, STACKS_SECONDS, then=popen.kill)
        popen.kill()
        header = f"process {child.process}, pid {popen.pid}: {problem}"
        with contextlib.suppress(OSError):
            append_stacks(self._directory.stacks(self._config), header, child.health.written())

    def _ending(self, child: Child) -> Ending:
        return self._dead.get(child.process) or child.engine.ending or unrecorded(child.engine.popen.poll() or 0)


class SignalHandler:
    """Counts the signals to stop that arrive in this context: the first stops the engine in order, the second kills it.
    After it signals are ignored: the run has ended, and they could only change the exit code."""

    def __init__(self) -> None:
        self.count = 0
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            signal.signal(number, lambda *_: self._stop())
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def follow(self, engine: Engine) -> None:
        """Takes over an engine that has just been started, and stops it if a signal arrived before."""
        self._engine = engine
        if self.count:
            engine.stop()

    def _stop(self) -> None:
        self.count += 1
        if self._engine is None:
            return
        if self.count > 1:
            self._engine.kill()
        else:
            self._engine.stop()


class Retries:
    def __init__(self, most: int) -> None:
        self._most = most
        self._restarts: deque[float] = deque(maxlen=most + 1)
        self._faults: deque[tuple[int, Ending, int]] = deque(maxlen=SAME_FAULTS)

    def note(self, rank: int, ending: Ending, step: int) -> None:
        """Counts the end of an engine. `rank`: the process that ended it. `step`: the last step that was trained."""
        begun = ending.step if ending.kind == "stuck" else 0  # not known if the process could not say it
        self._faults.append((rank, ending, begun or step))
        self._restarts.append(time.monotonic())

    @property
    def is_repeated(self) -> bool:
        different = {(rank, ending.fault, step) for rank, ending, step in self._faults}
        return len(different) == 1 and len(self._faults) == SAME_FAULTS

    def forget_faults(self) -> None:
        self._faults.clear()

    @property
    def problem(self) -> str | None:
        """Why the engine is not started again; None if it is. Call `note` first."""
        if not self._faults:
            return None
        rank, ending, step = self._faults[-1]
        if self.is_repeated:
            return (
                f"process {rank} ended {SAME_FAULTS} times in a row after step {step:,}, each time because: "
                f"{ending.why}: not started again: the cause is in that step or in the model, not in the machine"
            )
        if len(self._restarts) > self._most and time.monotonic() - self._restarts[0] < WINDOW_SECONDS:
            return (
                f"the engine was restarted {self._most} times within an hour, the limit of --restarts, and ended "
                f"again: process {rank}: {ending.why}"
            )
        return None
