"""Stops an engine: sends the command, sees by the run's lock when it has ended, and whether it makes progress."""

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ...engine.base.processes import KILL_SECONDS, Deadline, children, send_signal
from ...engine.base.user_error import UserError
from ...engine.spec.config import STOP_SECONDS
from ...engine.wire import framing
from ...engine.wire.commands import Stop
from ...engine.wire.event_log import deciding_events
from ...engine.wire.events import EngineStarted, EngineStopped, Failed
from ...engine.wire.lock import Holder
from ...engine.wire.run_directory import RunDirectory

CONNECT_SECONDS = 10.0
"""Time for an engine that was not started from here to listen."""
STOP_MARGIN_SECONDS = 15.0
"""Time on top of --stop-timeout for an engine to end by itself."""
POLL_SECONDS = 0.1
UNREACHABLE = "unreachable"


def exit_limit_seconds(directory: RunDirectory, margin: float = STOP_MARGIN_SECONDS) -> float:
    """Returns the seconds in which an engine ends after a stop request, unless it holds the GIL; infinite if
    unlimited."""
    limit = STOP_SECONDS
    with contextlib.suppress(UserError):  # of a run.json that cannot be read
        limit = directory.config.stop_seconds
    return math.inf if limit is None else limit + margin


def processes(directory: RunDirectory) -> list[int]:
    """Returns the processes of a run on this machine: its supervisor with what that started, and its engine."""
    supervisor, engine = directory.supervisor, directory.holder()
    of_supervisor = [supervisor.pid, *children(supervisor.pid)] if supervisor and supervisor.is_here else []
    return of_supervisor + ([engine.pid] if engine and engine.is_here and engine.pid not in of_supervisor else [])


async def stop(directory: RunDirectory, command: Stop, deadline: Deadline, is_late: Callable[[], bool]) -> str:
    """Asks the engine to stop till its lock is free: over its socket, else by a signal to the process that the lock
    names. Crowded engines drop connections. Returns why it is waited for no more: `UNREACHABLE`, or a problem; empty
    once it has ended."""
    holder = directory.holder()
    unreachable_at = time.monotonic() + CONNECT_SECONDS

    def problem() -> str:
        return deadline.problem(processes(directory)) or ("no progress" if is_late() else "")

    while holder and holder.is_alive and directory.holder() == holder:
        if await _sends_stop(directory, holder, command, problem):
            unreachable_at = math.inf
        if found := problem():
            return found
        if time.monotonic() > unreachable_at:
            if not holder.is_here:
                return UNREACHABLE
            send_signal(holder.pid, signal.SIGTERM)
            unreachable_at = math.inf
        await asyncio.sleep(POLL_SECONDS)
    return ""


async def stop_supervisor(directory: RunDirectory, deadline: Deadline) -> str:
    """Ends the supervisor, if there is one, by a signal: it may be between two attempts, or about to start another one.
    Returns as `stop` does."""
    if (supervisor := directory.supervisor) and supervisor.is_here:
        send_signal(supervisor.pid, signal.SIGTERM)
    while directory.is_supervised:
        if problem := deadline.problem(processes(directory)):
            return problem
        await asyncio.sleep(POLL_SECONDS)
    return ""


async def _sends_stop(directory: RunDirectory, holder: Holder, command: Stop, problem: Callable[[], str]) -> bool:
    """Sends the command over one connection, and waits for its end. Returns False if no engine listens."""
    try:
        reader, writer = await asyncio.open_unix_connection(directory.socket)
    except (OSError, UserError):
        return False
    writer.write(framing.frame(command))
    reading = asyncio.ensure_future(_drain(reader))
    try:
        while not reading.done() and directory.holder() == holder and not problem():
            await asyncio.wait([reading], timeout=POLL_SECONDS)
    finally:
        reading.cancel()
        writer.close()
    return True


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def kill(directory: RunDirectory) -> bool:
    """Kills the run's processes on this machine. Returns whether its lock is free in time."""
    for pid in processes(directory):  # the supervisor first: it would start another engine
        send_signal(pid, signal.SIGKILL)
    until = time.monotonic() + KILL_SECONDS
    while directory.holder() and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
    return directory.holder() is None


def end_event(directory: RunDirectory, pid: int | None) -> EngineStopped | Failed | None:
    """Returns the event with which the engine of this pid ended, or the last one; None if the history has none."""
    is_wanted, last = pid is None, None
    with contextlib.suppress(FileNotFoundError, UserError):
        for event in deciding_events(directory.events):
            if isinstance(event, EngineStarted):
                is_wanted = pid in (None, event.pid)
            elif is_wanted and isinstance(event, EngineStopped | Failed):
                last = event
    return last


def unreachable_problem(directory: RunDirectory) -> str:
    holder = directory.holder()
    who = holder.description if holder else "an engine"
    try:
        path = directory.socket
    except UserError as error:
        return f"{who} owns the run, but its socket cannot be used: {error}"
    return (
        f"{who} owns the run, but does not listen at {path}: set SHARDTUI_RUNTIME_DIR to the value with which it was "
        "started"
    )


MIN_IO_BYTES = 64 * 1024
"""Bytes that a process must read or write to count as active: an idle one also reads its clock."""


class Activity:
    """Polls an engine for signs of progress: what it reads and writes."""

    def __init__(self, directory: RunDirectory) -> None:
        self._holder = directory.holder()
        self.began = self.active_at = time.monotonic()
        """Start, and time of the last progress, in seconds of the monotonic clock."""
        self._bytes_at_start = self._last_bytes = _io_bytes(self._holder)
        self.bytes = 0
        """Bytes that the engine has read and written since the start."""

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self.active_at

    def poll(self) -> None:
        io_bytes = _io_bytes(self._holder)
        self.bytes = max(self.bytes, io_bytes - self._bytes_at_start)  # not less once it has ended
        if io_bytes >= self._last_bytes + MIN_IO_BYTES:
            self._last_bytes, self.active_at = io_bytes, time.monotonic()


def _io_bytes(holder: Holder | None) -> int:
    """Returns the bytes that the process has read and written (proc_pid_io(5)); 0 if that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if holder and holder.is_here:
            fields = Path(f"/proc/{holder.pid}/io").read_text().split()
            return int(fields[1]) + int(fields[3])  # rchar, wchar
    return 0
