"""The end of an engine that somebody asked for: told over connections of its own, and seen by the run's lock."""

import asyncio
import contextlib
import math
import time
from itertools import chain
from typing import Literal

from ..engine import protocol
from ..engine.config import Invalid
from ..engine.event_log import LogReader
from ..engine.lock import Holder
from ..engine.protocol import EngineStarted, EngineStopped, Failed, Stop
from ..engine.run_directory import RunDirectory

LISTENING_SECONDS = 10.0
"""For an engine that somebody else has started."""
POLL_SECONDS = 0.1
"""From one look at the lock to the next."""


async def stop(directory: RunDirectory, patience: float) -> Literal["ended", "late", "unheard"]:
    """Tells the engine to save and stop, and waits until its lock is free: not longer than so many seconds, nor where
    nobody listens. An engine with too many viewers hears a newcomer for a moment only: it is told again."""
    holder, until = directory.holder(), time.monotonic() + patience
    unheard_at = time.monotonic() + LISTENING_SECONDS
    while holder and holder.is_alive and directory.holder() == holder:
        if await _is_told(directory, holder, until):
            unheard_at = math.inf
        if time.monotonic() > min(until, unheard_at):
            return "late" if unheard_at == math.inf else "unheard"
        await asyncio.sleep(POLL_SECONDS)
    return "ended"


async def _is_told(directory: RunDirectory, holder: Holder, until: float) -> bool:
    """Over one connection, until the engine has ended or closes it; False where it does not listen."""
    try:
        reader, writer = await asyncio.open_unix_connection(directory.socket)
    except OSError:
        return False
    writer.write(protocol.frame(Stop()))
    reading = asyncio.ensure_future(_drain(reader))
    try:
        while not reading.done() and directory.holder() == holder and time.monotonic() < until:
            await asyncio.wait([reading], timeout=POLL_SECONDS)
    finally:
        reading.cancel()
        writer.close()
    return True


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


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
        "SHARDTUI_RUNTIME_DIR or XDG_RUNTIME_DIR as they are where it was started"
    )
