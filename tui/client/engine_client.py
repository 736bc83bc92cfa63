"""A viewer's access to a run: history from its file, live events from the socket, commands to the engine."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from tempfile import TemporaryFile
from typing import TypeVar

import msgspec
from msgspec import Struct

from ...engine.base.output import Relay, say
from ...engine.base.processes import exit_words
from ...engine.base.user_error import UserError
from ...engine.spec.attempt import Supervision
from ...engine.spec.config import Restart
from ...engine.wire.commands import AnyCommand, Stop
from ...engine.wire.engine_command import engine_command
from ...engine.wire.event import VERSION
from ...engine.wire.event_log import LogReader
from ...engine.wire.events import AnyEvent, Disconnected, EngineStarted, EngineStopped, Failed, MetricsFailed, Welcome
from ...engine.wire.run_directory import RunDirectory
from ..state.playback import Playback
from ..terminal import FAILED, REFUSED
from .connection import Connection, holds_in_time
from .engine_process import Answer
from .started_engine import StartedEngine, lost

T = TypeVar("T")
POLL_SECONDS = 0.02
RESUMED_SECONDS = 1.0
"""Time between two looks at whether an ended run is trained again."""


def ask_engine(kind: type[T], question: str, subject: Struct | str, *names: str) -> list[T]:
    """Returns the answer of an engine process, which alone may touch the devices, and prints what it says meanwhile.
    Raises SystemExit if it fails."""
    command = engine_command(question, subject, *names)
    with TemporaryFile() as answer:  # a process that the user's model forks keeps a pipe open
        with closing(Relay()) as log:
            run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=log.descriptor, check=False)
        answer.seek(0)
        found = Answer(run.returncode, answer.read(), list(log.lines.copy()))
    if found.status and not found.messages:
        say(exit_words(found.status))
    if found.status:
        raise SystemExit(REFUSED if found.messages and found.status == REFUSED else FAILED)
    return [msgspec.json.decode(line, type=kind) for line in found.output.splitlines()]


class EngineClient:
    def __init__(self, directory: RunDirectory, supervision: Supervision | None = None) -> None:
        """`supervision`: engines that are started from here get a supervisor."""
        self.directory = directory
        self.host = ""
        """Where the run is; empty for this host."""
        self._supervision = supervision
        self._engine: StartedEngine | None = None
        self._connection: Connection | None = None
        """The connection to the engine that is followed; None before `events` is called."""
        self._stop_requested = False
        """That engine was asked to stop, perhaps before it listened."""
        self._followed = 0
        """Process id of the engine of a supervised run that is followed."""
        self._elsewhere = ""
        """Where the run was last said to be, if its process 0 was on another host."""
        self.seq = 0
        """Events of the history that are known."""
        self._protocol = VERSION
        self.is_behind = False
        """More of the history follows at once."""
        self.playback: Playback | None = None
        """The clock of a replay; None for a run that is followed."""

    @property
    def damage(self) -> str:
        return ""

    async def connect(self) -> None:
        """To be awaited before the UI opens. Raises UserError."""

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def start_engine(self, restart: Restart | None = None) -> None:
        """Starts an engine. `restart`: how it resumes a run. Raises UserError if a file of the run cannot be used."""
        self._stop_requested = False
        for each in self._engine.metrics if self._engine else []:
            each.end()
        try:
            self._engine = StartedEngine(self.directory, restart or Restart(), self._supervision)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be used: {error.strerror}: remove it") from error

    def is_old(self, event: AnyEvent) -> bool:
        return self._engine is not None and self._engine.is_old(event)

    def discard_if_new(self) -> None:
        if self._engine is not None:
            self._engine.discard_if_new()

    def kill_engine(self) -> None:
        if self._engine is not None:
            self._engine.kill()

    async def wait_for_exit(self) -> bool:
        engine = self._engine
        return engine is None or await holds_in_time(lambda: engine.has_ended)

    async def wait_for_metrics(self, is_enough: Callable[[], bool]) -> list[str]:
        """Waits until the curves are written elsewhere, if they are to be. Returns why some are not, or not yet."""
        metrics = self._engine.metrics if self._engine else []
        remarks = [await each.wait(is_enough) for each in metrics]
        return [*(failure.line for failure in self._metrics_failures()), *filter(None, remarks)]

    def _metrics_failures(self) -> list[MetricsFailed]:
        metrics = self._engine.metrics if self._engine else []
        return [failure for each in metrics if (failure := each.new_failure())]

    async def events(self) -> AsyncIterator[list[AnyEvent]]:
        """Yields all events not yielded before, until the engine is known to have ended and why; an empty list ends the
        history. Their texts may have characters that are not fit for a terminal.

        It follows the engine last started from here, or the one alive. Another call ends the previous stream."""
        await self.close()
        if self._engine and self._engine.is_supervised and not await self._next_engine():
            yield [self._engine.refusal() or lost(self.directory.log)]
            return
        holder = None if self._engine else self.directory.holder()
        self._followed = holder.pid if holder else self._followed
        is_supervised = self.directory.is_supervised or (self._engine is not None and self._engine.is_supervised)
        is_between = is_supervised and not self._engine and not holder  # an attempt has ended, the next has not begun
        if is_between:
            for events in self._read(LogReader(self.directory.events)):
                yield events
            yield []
        else:
            async for events in self._events_of_engine(self._engine):
                yield events
        while following := await self._next_engine():
            if isinstance(following, str):
                yield [Disconnected(reason=following)]
                continue
            is_between = False
            async for events in self._events_of_engine(None):
                yield events
        if is_between:  # how its last engine ended
            async for events in self._events_of_engine(None):
                yield events
        elif is_supervised:
            for events in self._read(LogReader(self.directory.events)):  # why the supervisor gave up
                yield events

    async def _next_engine(self) -> bool | str:
        """Waits for the next engine of a supervised run. Returns where it is, once, if it is on another host; False
        once there will be none."""
        while self.directory.is_supervised or (self._engine and self._engine.is_supervised and self._engine.is_alive):
            if (holder := self.directory.holder()) and holder.is_alive and holder.pid != self._followed:
                self._followed, self._elsewhere = holder.pid, ""
                return True
            if (elsewhere := self.directory.elsewhere) and elsewhere != self._elsewhere:
                self._elsewhere = elsewhere
                return elsewhere
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _events_of_engine(self, engine: StartedEngine | None) -> AsyncIterator[list[AnyEvent]]:
        """Yields the events of one engine, and how it ended."""
        supervised = engine if engine and engine.is_supervised else None
        connection = self._connection = Connection(self.directory, None if supervised else engine)
        last: AnyEvent | None = None
        async for events in self._history_and_live(connection):
            last = events[-1] if events else last
            if failures := self._metrics_failures():
                yield [*failures]
            yield events
        connection.close()  # not in a `finally`: a viewer that stops reading may still send a command
        if end := await connection.final_event(last, self._protocol):
            yield [end]

    async def resumed_elsewhere(self, ended: int | None) -> None:
        """Waits, however long, until another process than `ended` trains the run, which `events` then follows."""
        while not self.is_trained_elsewhere(ended):
            await asyncio.sleep(RESUMED_SECONDS)
        self._engine = None

    def is_trained_elsewhere(self, ended: int | None) -> bool:
        holder = self.directory.holder()
        return holder is not None and holder.is_alive and holder.pid not in (0, ended)

    async def send(self, command: AnyCommand) -> None:
        if self._connection is not None:
            self._connection.send(command)

    async def request_stop(self) -> None:
        """Asks the engine to stop, and kills its processes if they have not ended in time."""
        self._stop_requested = True
        await self.send(Stop())
        if self._engine and (problem := await self._engine.wait_until_late()):
            say(f"run {self.directory.name}: {problem}: killed without saving")
            self._engine.kill()

    async def _history_and_live(self, connection: Connection) -> AsyncIterator[list[AnyEvent]]:
        """Connects first, so that it misses no event that occurs while it reads the history."""
        history = LogReader(self.directory.events)
        await connection.open()
        if self._stop_requested:
            await self.send(Stop())
        if connection.engine and (problem := connection.engine.refusal()):
            yield [problem]
            return
        self.is_behind = True
        for events in self._read(history):
            yield events
            await asyncio.sleep(0)  # lets the UI handle keys and draw
        self.is_behind = False
        yield []
        if not connection.is_open or self._protocol != VERSION:
            return
        while event := await connection.read():
            if event.seq > self.seq + 1 or isinstance(event, Welcome):
                for events in self._read(history):
                    yield events
            if isinstance(event, Welcome):
                continue
            if event.seq == 0 or event.seq > self.seq:
                self.seq = max(self.seq, event.seq)
                yield [event]
            if isinstance(event, EngineStopped | Failed):
                return  # a process that the engine forked may keep the connection open
        for events in self._read(history):
            yield events

    def _read(self, history: LogReader) -> Iterator[list[AnyEvent]]:
        try:
            for events in history.read(self.seq):
                self.seq = events[-1].seq
                started = [event for event in events if isinstance(event, EngineStarted)]
                self._protocol = started[-1].protocol if started else self._protocol
                yield events
        except (FileNotFoundError, UserError):  # it ended before it wrote an event, or the file is no log
            return
