"""The end of an engine that somebody asked for: told over connections of its own, and seen by the run's lock."""

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

LISTENING_SECONDS = 10.0
"""For an engine that somebody else has started."""
PATIENCE_SECONDS = 15.0
"""On top of --stop-timeout, for an engine to end by itself."""
KILLED_SECONDS = 5.0
"""In which the lock of a killed engine is free."""
POLL_SECONDS = 0.1
"""From one look at the lock to the next."""

End = Literal["ended", "late", "unheard"]


def patience(directory: RunDirectory) -> float:
    """Seconds in which an engine that was told to stop has ended: by itself, unless it holds Python's lock."""
    limit = STOP_SECONDS
    with contextlib.suppress(Invalid):  # of a run.json that cannot be read
        limit = directory.config.stop_seconds
    return math.inf if limit is None else limit + PATIENCE_SECONDS


async def stop(directory: RunDirectory, command: Stop, is_late: Callable[[], bool]) -> End:
    """Tells the engine to save and stop, and waits until its lock is free, not once it `is_late`, nor where nobody
    listens. An engine with too many viewers hears a newcomer for a moment only: it is told again."""
    holder = directory.holder()
    unheard_at = time.monotonic() + LISTENING_SECONDS
    while holder and holder.is_alive and directory.holder() == holder:
        if await _is_told(directory, holder, command, is_late):
            unheard_at = math.inf
        if is_late():
            return "late"
        if time.monotonic() > unheard_at:
            return "unheard"
        await asyncio.sleep(POLL_SECONDS)
    return "ended"


async def _is_told(directory: RunDirectory, holder: Holder, command: Stop, is_late: Callable[[], bool]) -> bool:
    """Over one connection, until the engine has ended or closes it; False where it does not listen."""
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
    """The engine, where it is a process of this machine."""
    if (holder := directory.holder()) and holder.is_here:
        with contextlib.suppress(OSError):
            os.kill(holder.pid, signal.SIGKILL)
    until = time.monotonic() + KILLED_SECONDS
    while directory.holder() and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)


def last_word(directory: RunDirectory, holder: Holder) -> EngineStopped | Failed | None:
    """Of the engine that held the lock, in the run's history."""
    is_its, last = False, None
    with contextlib.suppress(FileNotFoundError, Invalid):
        for event in chain.from_iterable(LogReader(directory.events).read()):
            if isinstance(event, EngineStarted):
                is_its = event.pid == holder.pid
            elif is_its and isinstance(event, EngineStopped | Failed):
                last = event
    return last


def unheard(directory: RunDirectory) -> str:
    """Why an engine that lives cannot be told anything."""
    holder = directory.holder()
    return (
        f"{holder.words if holder else 'an engine'} has the run, but does not listen at {directory.socket}: set "
        "SHARDTUI_RUNTIME_DIR as it is where it was started"
    )
