"""A run as a viewer reaches it: its history from the file, what happens from the socket, commands to the engine."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from tempfile import TemporaryFile

from ...engine.base.advice import advice
from ...engine.base.invalid import Invalid
from ...engine.spec.config import Restart, RunConfig
from ...engine.wire import framing
from ...engine.wire.commands import AnyCommand, Stop
from ...engine.wire.event_log import LogReader
from ...engine.wire.events import (
    AnyEvent,
    CommandRefused,
    Disconnected,
    EngineLost,
    EngineStarted,
    EngineStopped,
    Failed,
    StepsDone,
    Welcome,
)
from ...engine.wire.framing import mismatch
from ...engine.wire.run_directory import RunDirectory
from ...engine.wire.version import VERSION
from ..terminal.clean import clean, printable, warn
from .connection import Connection
from .last_words import exit_reason, last_words
from .started_engine import StartedEngine
from .stopping import unheard

EXIT_SECONDS = 5.0
"""For the processes of an engine that has reported its end."""
POLL_SECONDS = 0.02
GONE = "its process is gone without a word: killed, or out of memory"


def ask_engine(question: str, subject: RunConfig | str, *names: str) -> bytes:
    """The answer of an engine process, which alone may touch the devices. Where it refuses it says why, and we end as
    it did: raises SystemExit."""
    about = subject if isinstance(subject, str) else framing.encode_json(subject).decode()
    command = [sys.executable, "-P", "-m", "shardtui.engine", question, about, *names]
    with TemporaryFile() as answer, TemporaryFile() as said:  # a process that the user's model forks keeps pipes open
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=said, check=False).returncode
        answer.seek(0)
        said.seek(0)
        for line in said.read().decode(errors="replace").splitlines():
            print(printable(line), file=sys.stderr)
        if status < 0:
            warn(exit_reason(status))
        if status:
            raise SystemExit(max(status, 1))
        return answer.read()


class EngineClient:
    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._engine: StartedEngine | None = None
        """The last one that was started from here."""
        self._connection: Connection | None = None
        """To the engine that is followed."""
        self._is_to_stop = False
        """That engine was asked to, perhaps before it listened."""
        self._seq = 0
        """The last event that was told."""
        self._protocol = VERSION
        """Of the engine whose events were read last."""
        self.is_behind = False
        """More of the history follows at once."""

    def start_engine(self, restart: Restart | None = None) -> None:
        """`restart`: how it goes on with a run. Raises Invalid."""
        self._is_to_stop = False
        try:
            self._engine = StartedEngine(self.directory, restart or Restart())
        except OSError as error:
            raise Invalid(f"{error.filename}: cannot be used: {error.strerror}: remove it") from error

    def is_old(self, event: AnyEvent) -> bool:
        """It is of an engine before the one that was started from here."""
        return self._engine is not None and self._engine.is_old(event)

    def discard_if_new(self) -> None:
        """Leaves no directory of a run that could not begin."""
        if self._engine is not None:
            self._engine.discard_if_new()

    def kill_engine(self) -> None:
        """Only an engine that was started from here."""
        if self._engine is not None:
            self._engine.kill()

    async def has_ended(self) -> bool:
        """Waits until the processes of an engine that was started from here are gone; False where they are not in
        time."""
        engine, until = self._engine, time.monotonic() + EXIT_SECONDS
        while engine is not None and not engine.has_ended:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def events(self, cleaned: bool = True) -> AsyncIterator[list[AnyEvent]]:
        """All that was not told before, in order, until the engine has ended and the reason is known: the one that was
        started from here last, else the one that lives now. Whoever calls it again for another engine ends this first.

        `cleaned`: fit for a terminal. Programs are told the texts as they are. An empty list ends the history.
        """
        if self._connection is not None:
            self._connection.close()
        connection = self._connection = Connection(self.directory, self._engine)
        last: AnyEvent | None = None
        async for events in self._all(connection):
            last = events[-1] if events else last
            yield ([event if isinstance(event, StepsDone) else clean(event) for event in events] if cleaned else events)
        connection.close()  # not where nobody reads on: a viewer that goes still has something to say
        if end := await self._end(connection, last):
            yield [end]

    async def send(self, command: AnyCommand) -> None:
        """Does nothing where no engine listens."""
        if self._connection is not None:
            self._connection.send(command)

    async def ask_to_stop(self) -> None:
        """The engine, once it listens."""
        self._is_to_stop = True
        await self.send(Stop())

    async def _all(self, connection: Connection) -> AsyncIterator[list[AnyEvent]]:
        """Connects first, so that what happens while the history is read is not missed."""
        history = LogReader(self.directory.events)
        await connection.open()
        if self._is_to_stop:
            await self.send(Stop())
        if connection.engine and (problem := connection.engine.refusal()):
            yield [problem]
            return
        self.is_behind = True
        for events in self._read(history):
            yield events
            await asyncio.sleep(0)  # keys and drawing have their turn
        self.is_behind = False
        yield []
        if not connection.is_open or self._protocol != VERSION:
            return
        while event := await connection.read():
            if event.seq > self._seq + 1 or isinstance(event, Welcome):
                for events in self._read(history):
                    yield events
            if isinstance(event, Welcome):
                continue
            if event.seq == 0 or event.seq > self._seq:
                self._seq = max(self._seq, event.seq)
                yield [event]
            if isinstance(event, EngineStopped | Failed):  # the connection may stay: what the engine forked has it
                return
        for events in self._read(history):
            yield events

    def _read(self, history: LogReader) -> Iterator[list[AnyEvent]]:
        try:
            for events in history.read(self._seq):
                self._seq = events[-1].seq
                started = [event for event in events if isinstance(event, EngineStarted)]
                self._protocol = started[-1].protocol if started else self._protocol
                yield events
        except (FileNotFoundError, Invalid):  # it ended before it wrote a word, or something else lies there
            return

    async def _end(self, connection: Connection, last: AnyEvent | None) -> AnyEvent | None:
        """What is to be added to the last event, where that does not say how it ended."""
        engine = connection.engine
        if connection.is_elsewhere:
            return Disconnected(reason=printable(unheard(self.directory)))
        if isinstance(last, EngineStopped | Failed) and not (engine and engine.is_old(last)):
            return None
        if connection.is_engine_alive and (why := self._why_unheard(connection, last)):
            return Disconnected(reason=printable(f"it goes on, but without this viewer: {why}"))
        if not await _ends(connection):
            return Disconnected(reason="it goes on, but the connection to it is lost: attach again")
        if self._protocol > VERSION:
            known = f"protocol {self._protocol}, and this viewer knows {VERSION}"
            return Disconnected(reason=f"its engine has ended. How is said in {known}: update shardtui to see it")
        process, reason = engine.end() if engine else (0, GONE)
        return EngineLost(reason=printable(reason if process else self._with_log(reason, engine)), process=process)

    def _why_unheard(self, connection: Connection, last: AnyEvent | None) -> str:
        if self._protocol != VERSION:
            return mismatch(VERSION, self._protocol)
        if isinstance(last, CommandRefused):
            return mismatch(VERSION, last.protocol) if last.protocol else last.problem
        return connection.problem

    def reason(self) -> str:
        """Why an engine that was not started from here is gone, as far as can be known."""
        return self._with_log(GONE, None)

    def _with_log(self, told: str, engine: StartedEngine | None) -> str:
        """And what stands last in its log."""
        if not self.directory.log.exists():  # the run is only watched: what its program printed is elsewhere
            return told
        said = last_words(self.directory.log, engine.logged if engine else 0)
        if known := advice(said):
            return f"{told}: {known}; more in {self.directory.log}"
        return f"{told}; {self.directory.log}" + (f" says: {said}" if said else " says nothing")


async def _ends(connection: Connection) -> bool:
    """In time, once its connection is closed."""
    until = time.monotonic() + EXIT_SECONDS
    while connection.is_engine_alive:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
