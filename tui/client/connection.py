"""To one engine of a run, from the moment that it listens to its end. What another one says never comes over it."""

import asyncio
import contextlib
import time

from ...engine.wire import framing
from ...engine.wire.commands import AnyCommand, Hello
from ...engine.wire.events import AnyEvent
from ...engine.wire.framing import BadFrame, UnknownMessage
from ...engine.wire.run_directory import RunDirectory
from .started_engine import StartedEngine
from .stopping import LISTENING_SECONDS


class Connection:
    def __init__(self, directory: RunDirectory, engine: StartedEngine | None) -> None:
        """`engine`: the one that was started from here; else it is the one that lives now."""
        self.engine = engine
        self.is_elsewhere = False
        """The engine listens where we do not look."""
        self.problem = ""
        """Why it was given up, though the engine lives."""
        self._directory = directory
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def is_engine_alive(self) -> bool:
        if self.engine is not None:
            return self.engine.is_alive
        holder = self._directory.holder()
        return holder is not None and holder.is_alive

    async def open(self) -> None:
        """Waits while the engine lives and does not listen yet. Stays closed where it is gone, or listens elsewhere."""
        until = time.monotonic() + LISTENING_SECONDS
        while self.is_engine_alive:
            if self.engine is None and time.monotonic() > until:
                self.is_elsewhere = True
                return
            with contextlib.suppress(OSError):
                if self.engine is None or self._is_held_by(self.engine.pid):
                    self._reader, self._writer = await asyncio.open_unix_connection(self._directory.socket)
                    self.send(Hello())
                    return
            await asyncio.sleep(0.05)

    def _is_held_by(self, pid: int) -> bool:
        """And not by another engine, which was started at the same moment."""
        holder = self._directory.holder()
        return holder is not None and holder.pid == pid

    def send(self, command: AnyCommand) -> None:
        """Waits for nobody: an engine that stands still must not hold up who leaves it."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framing.frame(command))

    async def read(self) -> AnyEvent | None:
        """The next event that is understood; None at the end."""
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
        if self._writer is not None:
            self._writer.close()
            self._writer = None
