"""A run on another host: `ssh HOST shardtui stream RUN` carries its events here and commands there."""

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from ...engine.base.output import note, printable
from ...engine.base.processes import last_line
from ...engine.base.user_error import UserError
from ...engine.spec.config import Restart
from ...engine.wire import framing
from ...engine.wire.commands import AnyCommand
from ...engine.wire.event import VERSION
from ...engine.wire.events import AnyEvent, Disconnected, EngineStarted, Reconnected
from ...engine.wire.run_directory import RUN_NAME, RunDirectory
from .engine_client import EngineClient

GREETING = "shardtui-stream"
"""Begins the far end's first line, before its protocol and the run's name: a shell may print lines before that."""
GREETING_LINE = re.compile(rf"{GREETING} (\d+) ({RUN_NAME.pattern})")
SSH = ("ssh", "-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""A line that carries nothing for 15 seconds is lost."""
SILENT = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""Options to connect once the UI is open: no questions."""
NOT_FOUND = 127
"""The exit status of a shell that has not found the command."""
LONGEST_WAIT_SECONDS = 8.0
"""Longest time between two attempts to connect again."""
LAST_WORDS_SECONDS = 0.5
"""A process that ssh leaves behind for later connections (ControlPersist) keeps its pipes open."""
POLL_SECONDS = 0.1
ANSWER_SECONDS = 20.0
CHUNK_BYTES = 65536


class ConnectionLost(Exception):
    """The connection has ended, with the reason if ssh told one."""


class RemoteClient(EngineClient):
    """Follows a run through ssh, and connects again whenever the connection is lost. It starts no engine."""

    def __init__(self, host: str, run: str, program: str = "shardtui") -> None:
        """`host`: as ssh takes it. `run`: empty for the newest that trains. `program`: the command on the host, for its
        shell."""
        super().__init__(RunDirectory(Path(f"{host}:{run}")))
        self.host, self._run, self._program = host, run, program
        self._ssh: asyncio.subprocess.Process | None = None
        self._decompressor = zlib.decompressobj()
        self._received = bytearray()
        """What has arrived of the next batch, decompressed."""
        self._listening: asyncio.Task[None] | None = None
        self._is_connected = False
        """Whether it ever was."""
        self._last_word = ""
        """The last line that ssh, or the far end, has printed on stderr."""
        self._ahead: list[AnyEvent] | None = None
        """Events of the next engine that have been read."""

    async def connect(self) -> None:
        """Connects. The first time ssh may ask, and what it and the host's shell print is printed: the UI is not open
        yet. Raises UserError if that fails."""
        self._last_word = ""
        self._received.clear()
        self._decompressor = zlib.decompressobj()
        command = f"{self._program} stream {self._run} --since {self.seq}"
        self._ssh = ssh = await _ssh(self.host, command, may_ask=not self._is_connected)
        assert ssh.stdout and ssh.stderr
        self._listening = asyncio.create_task(self._listen(ssh.stderr))
        if greeting := await self._greeting(ssh.stdout):
            protocol, run = int(greeting[1]), greeting[2]
            if protocol == VERSION:
                self._run, self.directory = run, RunDirectory(Path(f"{self.host}:{run}"))
                self._is_connected = True
                return
            await self.close()
            why = framing.mismatch(VERSION, protocol)
        else:
            why = await self._why_ended()
        raise UserError(f"{self.host}: {why}")

    async def _why_ended(self) -> str:
        """Ends a connection that has no more to read. Returns why it has ended."""
        ssh = self._ssh
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await _exit_of(ssh)
        await self.close()
        status = ssh.returncode if ssh else None
        if status == NOT_FOUND:
            return f"{self._program}: not found there: install it, or name it with --command 'VENV/bin/shardtui'"
        return self._last_word.removeprefix("shardtui: ") or f"ssh has ended with exit code {status}"

    async def _greeting(self, stdout: asyncio.StreamReader) -> re.Match[str] | None:
        """Returns the far end's greeting; None if there is none."""
        async for line in _lines(stdout):
            if greeting := GREETING_LINE.fullmatch(line):
                return greeting
            self._pass_on(line)
        return None

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        async for line in _lines(stderr):
            self._last_word = printable(line) or self._last_word
            self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        if not self._is_connected:  # the UI is not open yet
            note(line)

    async def close(self) -> None:
        if self._ssh and self._ssh.stdin:
            self._ssh.stdin.close()
            if self._ssh.returncode is None:
                self._ssh.terminate()
            await _exit_of(self._ssh)
        if self._listening:
            await asyncio.wait([self._listening], timeout=LAST_WORDS_SECONDS)
            self._listening.cancel()
        self._ssh = self._listening = None

    async def events(self) -> AsyncIterator[list[AnyEvent]]:
        """Yields the events of the run's engine until it has ended, through all connections."""
        self.is_behind, lost_at = True, 0.0
        while True:
            try:
                events = await self._read_batch()
            except ConnectionLost as lost:
                lost_at = lost_at or time.time()
                async for reason in self._reconnecting(str(lost)):
                    yield [Disconnected(reason=f"{self.host}: {reason}", reconnects=True, time=lost_at)]
                continue
            if lost_at:  # the far end is connected to the engine
                lost_at = 0.0
                yield [Reconnected(time=time.time())]
            if events is None:
                return
            if events or self.is_behind:
                self.is_behind &= bool(events)
                yield events

    async def _read_batch(self) -> framing.Batch:
        """Returns the next events, none at the end of the history, None once the engine has ended."""
        if ahead := self._ahead:
            self._ahead = None
            return ahead
        try:
            while not (length := framing.batch_length(self._received)):
                self._received += self._decompressor.decompress(await self._chunk())
            events = framing.decode_batch(self._received[:length])
        except (framing.BadFrame, zlib.error) as error:
            await self.close()
            raise ConnectionLost(str(error)) from error
        del self._received[:length]
        self.seq = max([self.seq, *(event.seq for event in events or ())])
        return events

    async def _chunk(self) -> bytes:
        """Returns what arrives next. Raises ConnectionLost at the end, even if another process keeps the pipe open."""
        if self._ssh and self._ssh.stdout:
            reading = asyncio.ensure_future(self._ssh.stdout.read(CHUNK_BYTES))
            ending = asyncio.ensure_future(_exit_of(self._ssh))
            try:
                await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait([reading], timeout=LAST_WORDS_SECONDS)
                if reading.done() and (chunk := reading.result()):
                    return chunk
            finally:
                reading.cancel()
                ending.cancel()
        raise ConnectionLost(await self._why_ended())

    async def _reconnecting(self, reason: str) -> AsyncIterator[str]:
        """Tries until it is connected again. Yields why it is not, whenever the reason is another."""
        yield reason
        seconds = 1.0
        while True:
            await self.close()
            try:
                await self.connect()
            except UserError as error:
                (why,) = error.problems
                if (why := why.removeprefix(f"{self.host}: ")) != reason:
                    reason = why
                    yield why
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, LONGEST_WAIT_SECONDS)
            else:
                return

    async def resumed_elsewhere(self, ended: int | None) -> None:
        while not self._ahead:
            try:
                events = await self._read_batch()
            except ConnectionLost as lost:
                async for _ in self._reconnecting(str(lost)):
                    pass  # nothing is missed
            else:
                is_next = any(isinstance(event, EngineStarted) for event in events or ())
                self._ahead = events if is_next else None

    async def send(self, command: AnyCommand) -> None:
        if self._ssh and self._ssh.stdin:
            self._ssh.stdin.write(framing.frame(command))

    def start_engine(self, restart: Restart | None = None) -> None:
        raise UserError(f"run {self.directory.name}: start its engine on {self.host}")


async def output_of(host: str, command: str) -> bytes:
    """Returns what a command on another host prints on stdout, without input. ssh asks nothing. Raises UserError with
    the last line of stderr if it fails, and if it takes too long."""
    ssh = await _ssh(host, command, may_ask=False)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            out, words = await ssh.communicate()
    except TimeoutError as error:
        raise UserError(f"no answer in {ANSWER_SECONDS:.0f} s") from error
    finally:
        if ssh.returncode is None:
            ssh.terminate()
    if ssh.returncode:
        last = last_line(words.decode(errors="replace").splitlines())
        raise UserError(last or f"ssh has ended with exit code {ssh.returncode}")
    return out


async def _ssh(host: str, command: str, may_ask: bool) -> asyncio.subprocess.Process:
    """Raises UserError if there is no ssh."""
    pipe = asyncio.subprocess.PIPE
    asks = () if may_ask else SILENT
    try:
        return await asyncio.create_subprocess_exec(
            *SSH, *asks, "--", host, command, stdin=pipe, stdout=pipe, stderr=pipe
        )
    except FileNotFoundError as error:
        raise UserError("ssh: no such command: install OpenSSH's client") from error


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields the lines, without those longer than asyncio takes."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line.decode(errors="replace").strip()


async def _exit_of(ssh: asyncio.subprocess.Process | None) -> None:
    """Waits for the process, but not, as asyncio does, for its pipes."""
    while ssh and ssh.returncode is None:
        await asyncio.sleep(POLL_SECONDS)
