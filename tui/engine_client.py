"""A run as a viewer reaches it: its history from the file, what happens from the socket, commands to the engine."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ..engine import protocol
from ..engine.advice import advice
from ..engine.config import Membership, Restart, RunConfig
from ..engine.event_log import LogReader, last_seq
from ..engine.protocol import (
    AnyCommand,
    AnyEvent,
    BadFrame,
    CommandRefused,
    EngineLost,
    EngineStopped,
    Failed,
    StepsDone,
    Stop,
)
from ..engine.regular_file import open_regular
from ..engine.run_directory import RunDirectory
from .clean import clean, printable, warn

PATIENCE_SECONDS = 20.0
"""For an engine that was told to stop: it finishes its step and saves."""
LISTENING_SECONDS = 10.0
"""For an engine that somebody else has started."""
FATAL = re.compile(r"F\d{4} |LLVM ERROR|terminate called|Fatal Python error")
LONGEST_LOG = 1024 * 1024
"""Bytes at its end that are looked through."""


def ask_engine(question: str, subject: RunConfig | str, *names: str) -> bytes:
    """The answer of an engine process, which alone may touch the devices. Where it refuses it says why, and we end as
    it did: raises SystemExit."""
    about = subject if isinstance(subject, str) else protocol.encode_json(subject).decode()
    command = [sys.executable, "-P", "-m", "shardtui.engine", question, about, *names]
    answer = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    for line in answer.stderr.decode(errors="replace").splitlines():
        print(printable(line), file=sys.stderr)
    if answer.returncode < 0:
        warn(_exit_reason(answer.returncode))
    if answer.returncode:
        raise SystemExit(max(answer.returncode, 1))
    return answer.stdout


class EngineClient:
    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        """The engine that was started from here; of several processes the first."""
        self._others: list[subprocess.Popen[bytes]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._seq = 0
        self._before = 0
        """The last event before the engine that was started from here."""
        self._logged = 0
        """Bytes of the log from before it."""
        self._is_elsewhere = False
        """The engine listens where we do not look."""
        self.is_behind = False
        """More of the history follows at once."""

    def start_engine(self, restart: Restart | None = None) -> None:
        """Starts it in a session of its own, so that it outlives this terminal. `restart`: how it goes on with a run.

        With `-P` modules in the user's directory, a `random.py` say, do not take the place of Python's.
        """
        self._before = last_seq(self.directory.events)
        self._logged = self.directory.log.stat().st_size if self.directory.log.exists() else 0
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
        with log.open("ab") as file:
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
        if not self._before:
            self.directory.discard()

    def kill_engine(self) -> None:
        """Only an engine that was started from here."""
        for process in self._processes:
            process.kill()

    @property
    def _processes(self) -> list["subprocess.Popen[bytes]"]:
        return [self._process, *self._others] if self._process else []

    async def ended(self) -> None:
        """Waits until the processes of an engine that was started from here are gone."""
        for process in self._processes:
            await asyncio.to_thread(process.wait)

    async def end_engine(self) -> None:
        """Tells it to save and stop; where it does not, a compilation that hangs say, kills it."""
        await self.send(Stop())
        for number in (None, signal.SIGKILL):
            if number and (holder := self.directory.holder()):
                os.kill(holder, number)
            for _ in range(round(PATIENCE_SECONDS / 0.1)):
                if self.directory.holder() is None:
                    return
                await asyncio.sleep(0.1)

    async def events(self, cleaned: bool = True) -> AsyncIterator[list[AnyEvent]]:
        """All that was not told before, in order, until the engine has ended and the reason is known.

        `cleaned`: fit for a terminal. Programs are told the texts as they are. An empty list ends the history.
        """
        last: AnyEvent | None = None
        async for events in self._all():
            last = events[-1] if events else last
            yield ([event if isinstance(event, StepsDone) else clean(event) for event in events] if cleaned else events)
        if isinstance(last, CommandRefused):
            yield [EngineLost(reason=f"it goes on, but without this viewer: {printable(last.problem)}")]
        elif not isinstance(last, EngineStopped | Failed) or last.seq <= self._before or self._is_elsewhere:
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

    async def _all(self) -> AsyncIterator[list[AnyEvent]]:
        """Connects first, so that what happens while the history is read is not missed."""
        history = LogReader(self.directory.events)
        reader = await self._connect()
        self.is_behind = True
        for events in self._recorded(history):
            yield events
            await asyncio.sleep(0)  # keys and drawing have their turn
        self.is_behind = False
        yield []
        if reader is None:
            return
        while event := await self._next(reader):
            if event.seq > self._seq + 1:
                for events in self._recorded(history):
                    yield events
            if event.seq == 0 or event.seq > self._seq:
                self._seq = max(self._seq, event.seq)
                yield [event]
        self._writer = None
        for events in self._recorded(history):
            yield events

    def _recorded(self, history: LogReader) -> Iterator[list[AnyEvent]]:
        try:
            for events in history.read(self._seq):
                self._seq = events[-1].seq
                yield events
        except FileNotFoundError:  # the engine ended before it wrote a word
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
            try:
                reader, self._writer = await asyncio.open_unix_connection(self.directory.socket)
                return reader
            except OSError:
                await asyncio.sleep(0.05)
        return None

    def _is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self.directory.holder() is not None

    async def _end(self) -> tuple[int, str]:
        """Which process is gone, and why. One that aborts where another was killed did so for want of that one."""
        reason = await self._reason()
        ends = [process.poll() or 0 for process in self._processes]
        killed = (number for number, status in enumerate(ends) if status < 0 and status != -signal.SIGABRT)
        first = next(killed, 0)
        return first, _exit_reason(ends[first]) if first else reason

    async def _reason(self) -> str:
        """Why the engine is gone, as far as can be known from here."""
        told = "its process is gone without a word: killed, or out of memory"
        if self._is_elsewhere:
            return (
                f"process {self.directory.holder()} has the run, but does not listen at {self.directory.socket}: set "
                "SHARDTUI_RUNTIME_DIR or XDG_RUNTIME_DIR as they are where it was started"
            )
        if self._process is not None:
            told = _exit_reason(await asyncio.to_thread(self._process.wait))
        if not self.directory.log.exists():  # the run is only watched: what its program printed is elsewhere
            return told
        said = _last_words(self.directory.log, self._logged)
        if known := advice(said):
            return f"{told}: {known}; more in {self.directory.log}"
        return f"{told}; {self.directory.log}" + (f" says: {said}" if said else " says nothing")


def _exit_reason(status: int) -> str:
    if status < 0:
        hint = ", which the system also does when memory runs out" if status == -signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-status).name}{hint}"
    return f"its process ended with status {status} and said nothing"


def _last_words(log: Path, begin: int) -> str:
    """The line that says why a library ended the process, which stack traces follow; else the last one."""
    try:
        with open_regular(log) as file:
            file.seek(max(begin, log.stat().st_size - LONGEST_LOG))
            lines = file.read(LONGEST_LOG).decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return next((line for line in said if FATAL.match(line)), said[-1] if said else "")
