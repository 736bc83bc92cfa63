"""A connection to one engine of a run, from when it listens until it ends. No other engine's events arrive over it."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ...engine.base.user_error import UserError
from ...engine.wire import framing
from ...engine.wire.commands import AnyCommand, Hello
from ...engine.wire.event import VERSION
from ...engine.wire.events import AnyEvent, CommandRefused, Disconnected, EngineStopped, Failed
from ...engine.wire.framing import BadFrame, UnknownMessage, mismatch
from ...engine.wire.run_directory import RunDirectory
from .started_engine import StartedEngine, lost
from .stopping import CONNECT_SECONDS, unreachable_problem

EXIT_SECONDS = 5.0
"""Time for an engine's processes to exit after it has reported its end."""
POLL_SECONDS = 0.02
WATCH_SECONDS = 1.0
"""Time between two looks at whether the engine lives."""


class Connection:
    def __init__(self, directory: RunDirectory, engine: StartedEngine | None) -> None:
        """`engine`: the one that was started from here; None for the one that is alive now."""
        self.engine = engine
        self.is_unreachable = False
        """The engine lives, but does not listen at the socket that this process knows."""
        self.problem = ""
        """Why the connection was closed although the engine lives; empty otherwise."""
        self._directory = directory
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def is_engine_alive(self) -> bool:
        if self.engine is not None:
            return self.engine.is_alive
        return self._directory.is_alive

    async def open(self) -> None:
        """Connects as soon as the engine listens. Stays closed if the engine ends first or is unreachable."""
        until = time.monotonic() + CONNECT_SECONDS
        while self.is_engine_alive:
            if self.engine is None and time.monotonic() > until:
                self.is_unreachable = True
                return
            with contextlib.suppress(OSError, UserError):  # UserError: the directory of the sockets is not safe to use
                holder = self._directory.holder()  # perhaps an engine that was started at the same moment
                if self.engine is None or (holder and holder.pid == self.engine.pid):
                    self._reader, self._writer = await asyncio.open_unix_connection(self._directory.socket)
                    self._watching = asyncio.create_task(self._close_with_engine())
                    self.send(Hello())
                    return
            await asyncio.sleep(0.05)

    async def _close_with_engine(self) -> None:
        """A process that the engine forked may keep the connection open after its death."""
        while self.is_engine_alive:
            await asyncio.sleep(WATCH_SECONDS)
        if self._writer is not None:
            self._writer.close()

    def send(self, command: AnyCommand) -> None:
        """Sends without waiting: an engine that hangs must not block a viewer that leaves."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framing.frame(command))

    async def read(self) -> AnyEvent | None:
        """Returns the next event that this version knows; None at the end."""
        while self._reader is not None:
            try:
                return await framing.read_event(self._reader)
            except UnknownMessage:
                continue
            except BadFrame as error:
                self.problem = str(error)
                return None
            except (asyncio.IncompleteReadError, OSError):
                return None
        return None

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def final_event(self, last: AnyEvent | None, protocol: int) -> AnyEvent | None:
        """Returns an event that says how the engine ended, if the `last` that was read does not. `protocol`: of the
        history."""
        engine = self.engine
        if self.is_unreachable:
            return Disconnected(reason=unreachable_problem(self._directory))
        if isinstance(last, EngineStopped | Failed) and not (engine and engine.is_old(last)):
            return None
        if self.is_engine_alive and (why := self._why_disconnected(last, protocol)):
            return Disconnected(reason=f"its engine is alive, but this viewer cannot follow it: {why}")
        if not await holds_in_time(lambda: not self.is_engine_alive):
            return Disconnected(reason="its process is alive, but the connection was lost: attach again")
        if protocol > VERSION:
            known = f"it speaks protocol {protocol}, this viewer protocol {VERSION}"
            return Disconnected(reason=f"its engine has ended, but {known}: update shardtui to see how")
        return engine.end() if engine else lost(self._directory.log)

    def _why_disconnected(self, last: AnyEvent | None, protocol: int) -> str:
        if protocol != VERSION:
            return mismatch(VERSION, protocol)
        if isinstance(last, CommandRefused):
            return mismatch(VERSION, last.protocol) if last.protocol else last.problem
        return self.problem


async def holds_in_time(condition: Callable[[], bool]) -> bool:
    """Waits until the condition holds; returns False if that takes longer than `EXIT_SECONDS`."""
    until = time.monotonic() + EXIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
