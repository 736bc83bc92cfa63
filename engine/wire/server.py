"""The I/O thread: sends events to all viewers, and passes their commands to the training thread."""

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import framing
from .commands import AnyCommand, Hello, PreviewPreset, Stop
from .event import VERSION
from .events import CommandRefused, Event, Welcome
from .framing import BadFrame, mismatch

MAX_VIEWERS = 64
"""As many further connections may be about to say `Hello`."""
HELLO_SECONDS = 5.0
"""Timeout for a viewer's `Hello`."""
MAX_BACKLOG_BYTES = 4 * 1024 * 1024
"""Bytes that may wait for a slow viewer. Further events are dropped; it reads them from `events.jsonl`."""

Answer = Callable[[PreviewPreset], Iterator[Event]]
"""Yields an answer at once, and perhaps a complete one, which takes longer."""


class OtherProtocol(Exception):
    """The viewer uses another protocol version."""

    def __init__(self, version: int) -> None:
        super().__init__(mismatch(version, VERSION))


class Server:
    """Serves one Unix socket in its own thread."""

    def __init__(self, path: Path, enqueue: Callable[[AnyCommand], str | None]) -> None:
        """`enqueue` is called in the server's thread: it enqueues a command and returns None, or why it is refused."""
        self._path = path
        self._enqueue = enqueue
        self._answer: Answer | None = None
        self._answering, self._completing = (
            ThreadPoolExecutor(max_workers=1, thread_name_prefix=name) for name in ("answers", "complete answers")
        )
        """One question at a time over all viewers, because answering takes the GIL from the training thread."""
        self._connections: dict[asyncio.StreamWriter, bool] = {}
        """Whether each one receives events, the oldest first."""
        self._loop = asyncio.new_event_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._closing = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve()), name="server", daemon=True
        )

    def start(self) -> None:
        """Creates the socket and accepts viewers. Raises OSError if it cannot be created."""
        self._path.unlink(missing_ok=True)  # left by a killed engine: this process holds the run's lock
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._inode = self._path.stat().st_ino
        self._socket.listen()
        self._thread.start()

    def answer_with(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def descriptors(self) -> list[int]:
        return [self._socket.fileno(), *(each.get_extra_info("socket").fileno() for each in self._connections)]

    def publish(self, event: Event) -> None:
        """Sends an event to all viewers. From any thread; never blocks."""
        self._loop.call_soon_threadsafe(self._broadcast, event)

    def close(self) -> None:
        """Sends what was published and closes all connections; waits at most two seconds."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout=2)
        for executor in (self._answering, self._completing):
            executor.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._serve_connection, sock=self._socket)
        await self._closing.wait()
        server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections), return_exceptions=True)
        connection_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in connection_tasks:
            task.cancel()
        await asyncio.gather(*connection_tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:  # not a newer engine's, if the run's directory was removed
                self._path.unlink()

    def _broadcast(self, event: Event) -> None:
        frame = framing.frame(event)
        for connection, is_subscribed in self._connections.items():
            if is_subscribed:
                _write(connection, frame)

    async def _serve_connection(self, reader: asyncio.StreamReader, connection: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(connection) != os.getuid():
                return
            self._make_room(subscribed=False)
            self._connections[connection] = False
            await self._handshake(reader)
            self._make_room(subscribed=True)
            _write(connection, framing.frame(Welcome()))
            self._connections[connection] = True
            await self._handle_commands(reader, connection)
        except OtherProtocol as error:
            _write(connection, framing.frame(CommandRefused(problem=str(error), protocol=VERSION)))
        except BadFrame as error:
            _write(connection, framing.frame(CommandRefused(problem=str(error))))
        except (asyncio.IncompleteReadError, OSError):  # TimeoutError is one
            pass
        finally:
            self._connections.pop(connection, None)
            connection.close()

    def _make_room(self, subscribed: bool) -> None:
        """Ends the oldest viewer if there are `MAX_VIEWERS`, or the oldest connection that is none yet: the newest may
        want to stop the run."""
        alike = [each for each, is_subscribed in self._connections.items() if is_subscribed == subscribed]
        if len(alike) >= MAX_VIEWERS:
            del self._connections[alike[0]]
            alike[0].transport.abort()  # does not wait until it has read what was sent

    async def _handshake(self, reader: asyncio.StreamReader) -> None:
        """Waits for a `Hello` of this protocol version; accepts `Stop` from viewers of any version.

        Raises OtherProtocol, TimeoutError, and as `_handle_commands` does.
        """
        seconds: float | None = HELLO_SECONDS
        while True:
            async with asyncio.timeout(seconds):
                command = await framing.read_command(reader)
            match command:
                case Hello(protocol=version) if version != VERSION:
                    raise OtherProtocol(version)
                case Hello():
                    return
                case Stop():
                    self._enqueue(command)
                    seconds = None
                case _:
                    raise BadFrame("the first message of a viewer is `Hello`")

    async def _handle_commands(self, reader: asyncio.StreamReader, connection: asyncio.StreamWriter) -> None:
        """Handles commands until the connection ends with IncompleteReadError, OSError or BadFrame.

        While one question is answered only the latest further one waits: earlier ones are about outdated texts.
        """
        questions: asyncio.Queue[PreviewPreset] = asyncio.Queue(1)
        answering = asyncio.ensure_future(self._answer_questions(questions, connection))
        try:
            while True:
                command = await framing.read_command(reader)
                if isinstance(command, Hello):
                    continue
                if isinstance(command, PreviewPreset):
                    if questions.full():
                        questions.get_nowait()
                    questions.put_nowait(command)
                elif problem := self._enqueue(command):
                    _write(connection, framing.frame(CommandRefused(problem=problem)))
        finally:
            answering.cancel()

    async def _answer_questions(self, questions: "asyncio.Queue[PreviewPreset]", writer: asyncio.StreamWriter) -> None:
        """Answers at once; completes the answer to the latest question alone."""
        completing: asyncio.Future[None] | None = None
        try:
            while True:
                question = await questions.get()
                if completing:
                    completing.cancel()
                if self._answer is None:
                    problem = "the engine is still starting: try again once it is ready"
                    _write(writer, framing.frame(CommandRefused(problem=problem)))
                    continue
                events = self._answer(question)
                _write(writer, framing.frame(await self._loop.run_in_executor(self._answering, next, events)))
                completing = asyncio.ensure_future(self._complete(events, writer))
        finally:
            if completing:
                completing.cancel()

    async def _complete(self, events: Iterator[Event], writer: asyncio.StreamWriter) -> None:
        if event := await self._loop.run_in_executor(self._completing, next, events, None):
            _write(writer, framing.frame(event))


def _write(connection: asyncio.StreamWriter, frame: bytes) -> None:
    if connection.transport.get_write_buffer_size() < MAX_BACKLOG_BYTES:
        connection.write(frame)


def _peer_uid(viewer: asyncio.StreamWriter) -> int:
    peer: socket.socket = viewer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]
