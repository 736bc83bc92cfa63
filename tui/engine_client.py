"""A run as a viewer reaches it: its history from the file, what happens from the socket, commands to the engine."""

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile

from ..engine import protocol
from ..engine.advice import advice
from ..engine.append import append_regular
from ..engine.config import STOP_SECONDS, Invalid, Membership, Restart, RunConfig
from ..engine.event_log import LogReader, last_seq
from ..engine.protocol import (
    AnyCommand,
    AnyEvent,
    BadFrame,
    CommandRefused,
    EngineLost,
    EngineStarted,
    EngineStopped,
    Failed,
    StepsDone,
    Stop,
)
from ..engine.run_directory import RunDirectory
from .clean import clean, printable, warn
from .exit_codes import REFUSED
from .last_words import exit_reason, last_words
from .stopping import LISTENING_SECONDS, stop, unheard

PATIENCE_SECONDS = 15.0
"""On top of --stop-timeout, for an engine to end by itself."""
EXIT_SECONDS = 5.0
"""For the processes of an engine that has reported its end."""


def ask_engine(question: str, subject: RunConfig | str, *names: str) -> bytes:
    """The answer of an engine process, which alone may touch the devices. Where it refuses it says why, and we end as
    it did: raises SystemExit."""
    about = subject if isinstance(subject, str) else protocol.encode_json(subject).decode()
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
        self._process: subprocess.Popen[bytes] | None = None
        """The engine that was started from here; of several processes the first."""
        self._others: list[subprocess.Popen[bytes]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._is_to_stop = False
        """It was asked to, perhaps before it listened."""
        self._seq = 0
        self._before = 0
        """The last event before the engine that was started from here."""
        self._recorded = self._logged = 0
        """Bytes of the events and of the log from before it."""
        self._is_new = False
        """Nothing was in the directory but what the run was to be."""
        self._is_elsewhere = False
        """The engine listens where we do not look."""
        self.is_behind = False
        """More of the history follows at once."""

    def start_engine(self, restart: Restart | None = None) -> None:
        """Starts it in a session of its own, so that it outlives this terminal. `restart`: how it goes on with a run.

        With `-P` modules in the user's directory, a `random.py` say, do not take the place of Python's. Raises Invalid.
        """
        self._is_to_stop = False
        try:
            self._before = last_seq(self.directory.events)
            self._recorded, self._logged = map(_size, (self.directory.events, self.directory.log))
            self._is_new = [path.name for path in self.directory.path.iterdir()] == ["run.json"]
            self._start_processes(restart)
        except OSError as error:
            raise Invalid(f"{error.filename}: cannot be used: {error.strerror}: remove it") from error

    def _start_processes(self, restart: Restart | None) -> None:
        how = protocol.encode_json(restart or Restart()).decode()
        count = ((restart and restart.config) or self.directory.config).processes
        if count == 1:
            self._process = self._start(self.directory.log, how)
            return
        coordinator = f"unix:{self.directory.new_coordinator()}"
        members = [Membership(coordinator=coordinator, processes=count, process=number) for number in range(count)]
        self._process, *self._others = [
            self._start(self.directory.log_of(member.process or 0), how, protocol.encode_json(member).decode())
            for member in members
        ]

    def _start(self, log: Path, *how: str) -> "subprocess.Popen[bytes]":
        with append_regular(log) as file:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "shardtui.engine", "serve", str(self.directory.path), *how],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def is_old(self, event: AnyEvent) -> bool:
        """It is of an engine before the one that was started from here."""
        return 0 < event.seq <= self._before

    def discard_if_new(self) -> None:
        """Leaves no directory of a run that could not begin."""
        if self._is_new:
            self.directory.discard()

    def kill_engine(self) -> None:
        """Only an engine that was started from here."""
        for process in self._processes:
            process.kill()

    @property
    def _processes(self) -> list["subprocess.Popen[bytes]"]:
        return [self._process, *self._others] if self._process else []

    async def has_ended(self) -> bool:
        """Waits until the processes of an engine that was started from here are gone; False where they are not in
        time."""
        return await self._comes_true(lambda: all(process.poll() is not None for process in self._processes))

    async def end_engine(self) -> None:
        """Tells it to save and stop; where it does not, kills it."""
        if await stop(self.directory, self.patience) != "ended":
            await self.kill_holder()

    @property
    def patience(self) -> float:
        """Seconds in which an engine that was told to stop has ended: by itself, unless it holds Python's lock."""
        limit = STOP_SECONDS
        with contextlib.suppress(Invalid):  # of a run.json that cannot be read
            limit = self.directory.config.stop_seconds
        return math.inf if limit is None else limit + PATIENCE_SECONDS

    async def kill_holder(self) -> None:
        """Where it is a process of this machine."""
        if (holder := self.directory.holder()) and holder.is_here:
            with contextlib.suppress(OSError):
                os.kill(holder.pid, signal.SIGKILL)
        await self._comes_true(lambda: self.directory.holder() is None)

    async def _comes_true(self, holds: Callable[[], bool]) -> bool:
        until = time.monotonic() + EXIT_SECONDS
        while not holds():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    async def events(self, cleaned: bool = True) -> AsyncIterator[list[AnyEvent]]:
        """All that was not told before, in order, until the engine has ended and the reason is known.

        `cleaned`: fit for a terminal. Programs are told the texts as they are. An empty list ends the history.
        """
        last: AnyEvent | None = None
        async for events in self._all():
            last = events[-1] if events else last
            yield ([event if isinstance(event, StepsDone) else clean(event) for event in events] if cleaned else events)
        if isinstance(last, CommandRefused) and self._is_alive():
            yield [EngineLost(reason=f"it goes on, but without this viewer: {printable(last.problem)}")]
        elif not isinstance(last, EngineStopped | Failed) or self.is_old(last) or self._is_elsewhere:
            process, reason = await self._end()
            yield [EngineLost(reason=printable(reason), process=process)]

    async def send(self, command: AnyCommand) -> None:
        """Does nothing where no engine listens."""
        if self._writer is None:
            return
        try:
            self._writer.write(protocol.frame(command))
            await self._writer.drain()
        except OSError:
            pass

    async def ask_to_stop(self) -> None:
        """The engine, once it listens."""
        self._is_to_stop = True
        await self.send(Stop())

    async def _all(self) -> AsyncIterator[list[AnyEvent]]:
        """Connects first, so that what happens while the history is read is not missed."""
        history = LogReader(self.directory.events)
        reader = await self._connect()
        if problem := self._refused():
            yield [problem]
            return
        self.is_behind = True
        for events in self._read(history):
            yield events
            await asyncio.sleep(0)  # keys and drawing have their turn
        self.is_behind = False
        yield []
        if reader is None:
            return
        while event := await self._next(reader):
            if event.seq > self._seq + 1:
                for events in self._read(history):
                    yield events
            if event.seq == 0 or event.seq > self._seq:
                self._seq = max(self._seq, event.seq)
                yield [event]
            if isinstance(event, EngineStopped | Failed):  # the connection may stay: what the engine forked has it
                self._disconnect()
                return
        self._disconnect()
        for events in self._read(history):
            yield events

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _refused(self) -> Failed | None:
        """Why an engine that was started from here made no beginning. Where it did, the events before it are old: those
        of another one may have come meanwhile."""
        if self._process is None:
            return None
        rival = 0
        with contextlib.suppress(OSError):
            for event in chain.from_iterable(LogReader(self.directory.events, self._recorded).read()):
                if isinstance(event, EngineStarted):
                    if event.pid == self._process.pid:
                        self._before = event.seq - 1
                        return None
                    rival = event.pid
        if self._process.poll() != REFUSED:
            return None
        self.kill_engine()  # of several processes the others
        holder = self.directory.holder()
        if holder is None and not rival:
            return _refusal(printable(last_words(self.directory.log, self._logged)))
        self._is_new = False
        name, who = self.directory.name, holder.words if holder else f"process {rival}"
        attach = f"`shardtui attach {name}` shows it"
        return _refusal(f"run {name}: {who} trains it, which was started at the same moment: {attach}")

    def _read(self, history: LogReader) -> Iterator[list[AnyEvent]]:
        try:
            for events in history.read(self._seq):
                self._seq = events[-1].seq
                yield events
        except (FileNotFoundError, Invalid):  # it ended before it wrote a word, or something else lies there
            return

    async def _next(self, reader: asyncio.StreamReader) -> AnyEvent | None:
        try:
            return await protocol.read_event(reader)
        except (asyncio.IncompleteReadError, OSError, BadFrame):
            return None

    async def _connect(self) -> asyncio.StreamReader | None:
        """Waits while the engine lives and does not listen yet; None where it is gone, or listens elsewhere."""
        until = time.monotonic() + LISTENING_SECONDS
        while self._is_alive():
            if self._process is None and time.monotonic() > until:
                self._is_elsewhere = True
                return None
            with contextlib.suppress(OSError):
                if self._process is None or self._holds(self._process.pid):
                    reader, self._writer = await asyncio.open_unix_connection(self.directory.socket)
                    if self._is_to_stop:
                        await self.send(Stop())
                    return reader
            await asyncio.sleep(0.05)
        return None

    def _holds(self, pid: int) -> bool:
        """And not another engine, which was started at the same moment."""
        holder = self.directory.holder()
        return holder is not None and holder.pid == pid

    def _is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        holder = self.directory.holder()
        return holder is not None and holder.is_alive

    async def _end(self) -> tuple[int, str]:
        """Which process is gone, and why. One that aborts where another was killed did so for want of that one."""
        reason = await self.reason()
        ends = [process.poll() or 0 for process in self._processes]
        killed = (number for number, status in enumerate(ends) if status < 0 and status != -signal.SIGABRT)
        first = next(killed, 0)
        return first, exit_reason(ends[first]) if first else reason

    async def reason(self) -> str:
        """Why the engine is gone, as far as can be known from here."""
        told = "its process is gone without a word: killed, or out of memory"
        if self._is_elsewhere:
            return unheard(self.directory)
        if self._process is not None:
            told = exit_reason(await asyncio.to_thread(self._process.wait))
        if not self.directory.log.exists():  # the run is only watched: what its program printed is elsewhere
            return told
        said = last_words(self.directory.log, self._logged)
        if known := advice(said):
            return f"{told}: {known}; more in {self.directory.log}"
        return f"{told}; {self.directory.log}" + (f" says: {said}" if said else " says nothing")


def _refusal(problem: str) -> Failed:
    return Failed(problems=[problem], refused=True, time=time.time())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
