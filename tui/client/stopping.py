"""Stops an engine: sends the command over connections of its own, and sees by the run's lock when it has ended."""

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from itertools import chain
from typing import Literal

from ...engine.base.invalid import Invalid
from ...engine.spec.config import STOP_SECONDS
from ...engine.wire import framing
from ...engine.wire.commands import Stop
from ...engine.wire.event_log import LogReader
from ...engine.wire.events import EngineStarted, EngineStopped, Failed
from ...engine.wire.lock import Holder
from ...engine.wire.run_directory import RunDirectory

CONNECT_SECONDS = 10.0
"""Time for an engine that was not started from here to listen."""
STOP_MARGIN_SECONDS = 15.0
"""Time on top of --stop-timeout for an engine to end by itself."""
KILL_SECONDS = 5.0
"""Time for the lock of a killed engine to become free."""
POLL_SECONDS = 0.1
"""Time between two checks of the lock."""

End = Literal["ended", "late", "unreachable"]
"""How a stop ended: the engine has ended, it took too long, or it does not listen."""


def exit_limit_seconds(directory: RunDirectory) -> float:
    """Returns the seconds in which an engine ends after a stop request, unless it holds the GIL; infinite if
    unlimited."""
    limit = STOP_SECONDS
    with contextlib.suppress(Invalid):  # of a run.json that cannot be read
        limit = directory.config.stop_seconds
    return math.inf if limit is None else limit + STOP_MARGIN_SECONDS


async def stop(directory: RunDirectory, command: Stop, is_late: Callable[[], bool]) -> End:
    """Asks the engine to save and stop, and waits until its lock is free, it `is_late`, or it is unreachable.

    The command is repeated, because an engine with too many viewers closes a new connection after a moment.
    """
    holder = directory.holder()
    unreachable_at = time.monotonic() + CONNECT_SECONDS
    while holder and holder.is_alive and directory.holder() == holder:
        if await _sends_stop(directory, holder, command, is_late):
            unreachable_at = math.inf
        if is_late():
            return "late"
        if time.monotonic() > unreachable_at:
            return "unreachable"
        await asyncio.sleep(POLL_SECONDS)
    return "ended"


async def _sends_stop(directory: RunDirectory, holder: Holder, command: Stop, is_late: Callable[[], bool]) -> bool:
    """Sends the command over one connection, and waits for its end. Returns False if no engine listens."""
    try:
        reader, writer = await asyncio.open_unix_connection(directory.socket)
    except OSError:
        return False
    writer.write(framing.frame(command))
    reading = asyncio.ensure_future(_drain(reader))
    try:
        while not reading.done() and directory.holder() == holder and not is_late():
            await asyncio.wait([reading], timeout=POLL_SECONDS)
    finally:
        reading.cancel()
        writer.close()
    return True


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def kill(directory: RunDirectory) -> None:
    """Kills the engine if it is a process of this machine, and waits until its lock is free."""
    if (holder := directory.holder()) and holder.is_here:
        with contextlib.suppress(OSError):
            os.kill(holder.pid, signal.SIGKILL)
    until = time.monotonic() + KILL_SECONDS
    while directory.holder() and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)


def end_event(directory: RunDirectory, holder: Holder) -> EngineStopped | Failed | None:
    """Returns the event with which the engine that held the lock ended; None if the history has none."""
    is_from_holder, last = False, None
    with contextlib.suppress(FileNotFoundError, Invalid):
        for event in chain.from_iterable(LogReader(directory.events).read()):
            if isinstance(event, EngineStarted):
                is_from_holder = event.pid == holder.pid
            elif is_from_holder and isinstance(event, EngineStopped | Failed):
                last = event
    return last


def unreachable_problem(directory: RunDirectory) -> str:
    """Returns why an engine that is alive cannot be reached."""
    holder = directory.holder()
    return (
        f"{holder.description if holder else 'an engine'} owns the run, but does not listen at {directory.socket}: set "
        "SHARDTUI_RUNTIME_DIR to the value with which it was started"
    )
