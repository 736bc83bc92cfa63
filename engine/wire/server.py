"""The I/O thread: tells every viewer what happens and hands their commands to the training thread."""

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import framing
from .commands import AnyCommand, Hello, Stop, WeighPreset
from .events import CommandRefused, Event, Welcome
from .framing import BadFrame, mismatch
from .version import VERSION

MOST_VIEWERS = 64
MOST_GUESTS = 16
"""Connections beyond those: they see nothing, but their commands are heard, so that a run can always be stopped."""
GUEST_SECONDS = 5.0
HELLO_SECONDS = 5.0
"""In which a viewer says which protocol it speaks; the first ones said nothing."""
SILENT = 1
"""The protocol of those."""
LARGEST_BACKLOG = 4 * 1024 * 1024
"""Bytes that may wait for a slow viewer. It misses what comes on top and reads that from `events.jsonl`."""


Answer = Callable[[WeighPreset], Event]


class OtherProtocol(Exception):
    """The viewer speaks another one."""

    def __init__(self, spoken: int) -> None:
        super().__init__(mismatch(spoken, VERSION))


class Server:
    """Serves one Unix socket in a thread of its own. `obey` is called in that thread and must only enqueue, or say why
    it refuses."""

    def __init__(self, path: Path, obey: Callable[[AnyCommand], str | None]) -> None:
        self._path = path
        self._obey = obey
        self._answer: Answer | None = None
        self._answering = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")
        """One question at a time, of all viewers: an answer takes Python from the steps."""
        self._viewers: set[asyncio.StreamWriter] = set()
        self._greeted: set[asyncio.StreamWriter] = set()
        """Of those, the ones that are told what happens."""
        self._guests: dict[asyncio.StreamWriter, None] = {}
        """In the order in which they came."""
        self._loop = asyncio.new_event_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self) -> None:
        """From here on the socket accepts viewers. Raises OSError where it cannot be made."""
        self._path.unlink(missing_ok=True)  # left by an engine that was killed; the run's lock says it is ours
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._inode = self._path.stat().st_ino
        self._socket.listen()
        self._thread.start()

    def answer_with(self, answer: Answer) -> None:
        """From now on `answer`, called in a thread of its own, says what the one viewer is told that asks."""
        self._answer = answer

    @property
    def descriptors(self) -> list[int]:
        """Of its sockets; -1 for one that is closed."""
        connections = (*self._viewers, *self._guests)
        return [self._socket.fileno(), *(each.get_extra_info("socket").fileno() for each in connections)]

    def publish(self, event: Event) -> None:
        """From any thread; never blocks."""
        self._loop.call_soon_threadsafe(self._broadcast, event)

    def close(self) -> None:
        """Returns once what was published is on its way, or after two seconds."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout=2)
        self._answering.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._attend, sock=self._socket)
        await self._closing.wait()
        server.close()
        connections = (*self._viewers, *self._guests)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections), return_exceptions=True)
        attending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in attending:
            task.cancel()
        await asyncio.gather(*attending, return_exceptions=True)
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:  # not that of another engine, where the run's directory is gone
                self._path.unlink()

    def _broadcast(self, event: Event) -> None:
        frame = framing.frame(event)
        for viewer in self._greeted:
            _write(viewer, frame)

    async def _attend(self, reader: asyncio.StreamReader, connection: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(connection) not in (None, os.getuid()):
                return
            if len(self._viewers) < MOST_VIEWERS:
                await self._attend_viewer(reader, connection)
            else:
                await self._attend_guest(reader, connection)
        except OtherProtocol as error:
            _write(connection, framing.frame(CommandRefused(problem=str(error), protocol=VERSION)))
        except BadFrame as error:
            _write(connection, framing.frame(CommandRefused(problem=str(error))))
        except (asyncio.IncompleteReadError, OSError):  # TimeoutError is one
            pass
        finally:
            connection.close()

    async def _attend_viewer(self, reader: asyncio.StreamReader, viewer: asyncio.StreamWriter) -> None:
        self._viewers.add(viewer)
        try:
            await self._meet(reader)
            _write(viewer, framing.frame(Welcome()))
            self._greeted.add(viewer)
            await self._hear(reader, viewer)
        finally:
            self._viewers.discard(viewer)
            self._greeted.discard(viewer)

    async def _attend_guest(self, reader: asyncio.StreamReader, guest: asyncio.StreamWriter) -> None:
        """Where they are too many, the first one goes: the newest may want to stop the run."""
        problem = f"{MOST_VIEWERS} viewers watch this run already: close one of them"
        _write(guest, framing.frame(CommandRefused(problem=problem)))
        if len(self._guests) >= MOST_GUESTS:
            first = next(iter(self._guests))
            del self._guests[first]
            first.close()
        self._guests[guest] = None
        try:
            async with asyncio.timeout(GUEST_SECONDS):
                await self._meet(reader)
                await self._hear(reader, guest)
        finally:
            self._guests.pop(guest, None)

    async def _meet(self, reader: asyncio.StreamReader) -> None:
        """Returns once it has said that it speaks our protocol; `Stop` is obeyed before, whoever says it. Raises
        OtherProtocol, and as `_hear`."""
        seconds: float | None = HELLO_SECONDS
        while True:
            try:
                async with asyncio.timeout(seconds):
                    command = await framing.read_command(reader)
            except TimeoutError:
                raise OtherProtocol(SILENT) from None
            match command:
                case Hello(protocol=spoken) if spoken != VERSION:
                    raise OtherProtocol(spoken)
                case Hello():
                    return
                case Stop():
                    self._obey(command)
                    seconds = None
                case _:
                    raise OtherProtocol(SILENT)

    async def _hear(self, reader: asyncio.StreamReader, connection: asyncio.StreamWriter) -> None:
        """Obeys until the connection ends, by IncompleteReadError, OSError or BadFrame. Of its questions one is
        answered and one waits, the last: nobody looks at what follows from a text that was changed since."""
        questions: asyncio.Queue[WeighPreset] = asyncio.Queue(1)
        answering = asyncio.ensure_future(self._answer_all(questions, connection))
        try:
            while True:
                command = await framing.read_command(reader)
                if isinstance(command, Hello):
                    continue
                if isinstance(command, WeighPreset):
                    if questions.full():
                        questions.get_nowait()
                    questions.put_nowait(command)
                elif problem := self._obey(command):
                    _write(connection, framing.frame(CommandRefused(problem=problem)))
        finally:
            answering.cancel()

    async def _answer_all(self, questions: "asyncio.Queue[WeighPreset]", connection: asyncio.StreamWriter) -> None:
        while True:
            question = await questions.get()
            if self._answer is None:
                problem = "the engine does not know its devices yet: ask once it is ready"
                _write(connection, framing.frame(CommandRefused(problem=problem)))
            else:
                _write(
                    connection,
                    await self._loop.run_in_executor(self._answering, _answered, self._answer, question),
                )


def _answered(answer: Answer, question: WeighPreset) -> bytes:
    return framing.frame(answer(question))


def _write(connection: asyncio.StreamWriter, frame: bytes) -> None:
    if connection.transport.get_write_buffer_size() < LARGEST_BACKLOG:
        connection.write(frame)


def _peer_uid(viewer: asyncio.StreamWriter) -> int | None:
    """Who is at the other end; None where the system cannot say and the directory's mode has to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    peer: socket.socket = viewer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]
