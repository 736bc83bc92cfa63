"""An engine that was started from here: its processes, how they end, and which events are older."""

import asyncio
import contextlib
import signal
import subprocess
import time
from itertools import chain
from pathlib import Path

from msgspec import Struct

from ...engine.base.advice import advice
from ...engine.base.processes import Deadline, children, exit_words, last_line, send_signal, wait_for
from ...engine.base.regular_file import append_regular
from ...engine.spec.attempt import Supervision
from ...engine.spec.config import Restart
from ...engine.wire.ending import RecordedProcess, unrecorded, worst
from ...engine.wire.engine_command import engine_command
from ...engine.wire.event_log import LogReader, last_seq
from ...engine.wire.events import AnyEvent, EngineLost, EngineStarted, Failed
from ...engine.wire.run_directory import RunDirectory
from .engine_process import log_lines
from .metrics_process import MetricsProcess
from .stopping import POLL_SECONDS, exit_limit_seconds

SUPERVISOR_SECONDS = 10.0
"""Time for a supervisor to end after its engine has refused the run."""
LAST_MARGIN_SECONDS = 75.0
"""Time on top of --stop-timeout for all processes to end. A supervisor ends its engine earlier than that."""

EXITED_SILENTLY = "its process ended without a message: killed, or out of memory"


class StartedEngine:
    """An engine in a session of its own, so that it outlives this terminal."""

    def __init__(self, directory: RunDirectory, restart: Restart, supervision: Supervision | None = None) -> None:
        """`restart`: how it resumes. `supervision`: starts a supervisor, which starts it. Raises OSError, UserError."""
        self._directory = directory
        self._last_old_seq = last_seq(directory.events)
        """Sequence number of the last event before this engine."""
        self._old_events_bytes, self._old_log_bytes = map(_size, (directory.events, directory.log))
        """Bytes of the events and of the log from before this engine."""
        self._is_new = {path.name for path in directory.path.iterdir()} <= {"run.json", directory.run_file.name}
        """The directory held nothing but the run's configuration."""
        self.is_supervised = supervision is not None
        """Whether a supervisor starts it, and starts it again if a process is lost."""
        self._processes = _start(directory, restart, supervision)
        """The first one serves viewers, or is the supervisor."""
        to = (restart.config or directory.config).metrics_to
        self.metrics = [MetricsProcess(directory, each, self.pid) for each in to]

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    @property
    def is_alive(self) -> bool:
        return not self._processes[0].has_ended

    @property
    def has_ended(self) -> bool:
        return all(process.has_ended for process in self._processes)

    def kill(self) -> None:
        for pid in self._pids():
            send_signal(pid, signal.SIGKILL)

    async def wait_until_late(self) -> str:
        """Waits for the end of all processes, after a request to stop. Returns why they are waited for no more; empty
        once they have ended."""
        deadline = Deadline(exit_limit_seconds(self._directory, LAST_MARGIN_SECONDS))
        while pids := self._pids():
            if problem := deadline.problem(pids):
                return problem
            await asyncio.sleep(POLL_SECONDS)
        return ""

    def _pids(self) -> list[int]:
        """Returns the living processes, with those of a supervisor, which its end may not reach if they hang."""
        own = [process.pid for process in self._processes if not process.has_ended]
        return own + [child for pid in own if self.is_supervised for child in children(pid)]

    def is_old(self, event: AnyEvent) -> bool:
        return 0 < event.seq <= self._last_old_seq

    def discard_if_new(self) -> None:
        if not self._is_new:
            return
        if self.is_supervised:  # its processes still write there until it has ended
            wait_for(self._processes[0].popen, SUPERVISOR_SECONDS, then=self.kill)
        self._directory.discard()

    def refusal(self) -> Failed | None:
        """Returns why the engine did not begin; None if it did: then events before its own, of any engine, are old."""
        rival = 0
        with contextlib.suppress(OSError):
            for event in chain.from_iterable(LogReader(self._directory.events, self._old_events_bytes).read()):
                if isinstance(event, EngineStarted):
                    if self.pid in (event.pid, event.attempt and event.attempt.supervisor):
                        self._last_old_seq = event.seq - 1
                        return None
                    rival = event.pid
        ending = self._processes[0].ending if self._processes[0].has_ended else None
        if ending is None or ending.kind != "refused":
            return None
        self.kill()  # the other processes of this engine
        holder = self._directory.holder()
        if holder is None and not rival:
            return refused(*ending.problems)
        self._is_new = False
        name, who = self._directory.name, holder.description if holder else f"process {rival}"
        attach = f"`shardtui attach {name}` shows it"
        return refused(f"run {name}: {who}, started at the same moment, is training it: {attach}")

    def end(self) -> EngineLost:
        """Says which process exited first, and how: one that aborts after a killed one did so because of it."""
        statuses = [process.popen.poll() for process in self._processes]
        killed = {number: unrecorded(status) for number, status in enumerate(statuses) if status and status < 0}
        first = worst(killed)[0] if killed else 0
        if first or statuses[0] == -signal.SIGKILL:  # by which a process says nothing in its log
            return EngineLost(reason=exit_words(statuses[first]), process=first)
        return lost(self._directory.log, self._old_log_bytes, exit_words(statuses[0]))


def lost(log: Path, begin: int = 0, reason: str = EXITED_SILENTLY) -> EngineLost:
    """Says why an engine is gone, as far as its log tells after the first `begin` bytes."""
    if log.exists():  # an external loop prints elsewhere
        line = last_line(log_lines(log, begin))
        if known := advice(line):
            reason = f"{reason}: {known}; more in {log}"
        else:
            reason = f"{reason}; {log}" + (f" says: {line}" if line else " is empty")
    return EngineLost(reason=reason)


def _start(directory: RunDirectory, restart: Restart, supervision: Supervision | None) -> list[RecordedProcess]:
    if supervision:
        return [_process("supervise", directory, directory.log, restart, supervision)]
    count = (restart.config or directory.config).processes
    return [
        _process("serve", directory, directory.log_of(number), restart, *member)
        for number, member in enumerate(directory.new_members(count))
    ]


def _process(question: str, directory: RunDirectory, log: Path, *how: Struct) -> RecordedProcess:
    with append_regular(log) as file:
        return RecordedProcess(
            engine_command(question, str(directory.path), *how),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def refused(*problems: str) -> Failed:
    return Failed(problems=list(problems), refused=True, time=time.time())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
