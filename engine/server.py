"""The I/O thread: tells every viewer what happens and hands their commands to the training thread."""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from . import protocol
from .protocol import AnyCommand, BadFrame, CommandRefused, Event, WeighPreset

MOST_VIEWERS = 64
LARGEST_BACKLOG = 4 * 1024 * 1024
"""Bytes that may wait for a slow viewer. It misses what comes on top and reads that from `events.jsonl`."""


Answer = Callable[[WeighPreset], Event]


class Server:
    """Serves one Unix socket in a thread of its own. `obey` is called in that thread and must only enqueue, or say why
    it refuses."""

    def __init__(self, path: Path, obey: Callable[[AnyCommand], str | None]) -> None:
        self._path = path
        self._obey = obey
        self._answer: Answer | None = None
        self._viewers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self) -> None:
        """From here on the socket accepts viewers. Raises OSError where it cannot be made."""
        self._path.unlink(missing_ok=True)  # left by an engine that was killed; the run's lock says it is ours
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._socket.listen()
        self._thread.start()

    def answer_with(self, answer: Answer) -> None:
        """From now on `answer`, called in threads of its own, says what the one viewer is told that asks."""
        self._answer = answer

    @property
    def descriptors(self) -> list[int]:
        """Of its sockets."""
        viewers = (viewer.get_extra_info("socket").fileno() for viewer in tuple(self._viewers))
        return [self._socket.fileno(), *(number for number in viewers if number >= 0)]

    def publish(self, event: Event) -> None:
        """From any thread; never blocks."""
        self._loop.call_soon_threadsafe(self._broadcast, event)

    def close(self) -> None:
        """Returns once what was published is on its way, or after two seconds."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout=2)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._attend, sock=self._socket)
        await self._closing.wait()
        server.close()
        for viewer in tuple(self._viewers):
            viewer.close()
        await asyncio.gather(*(viewer.wait_closed() for viewer in self._viewers), return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def _broadcast(self, event: Event) -> None:
        frame = protocol.frame(event)
        for viewer in self._viewers:
            if viewer.transport.get_write_buffer_size() < LARGEST_BACKLOG:
                viewer.write(frame)

    async def _attend(self, reader: asyncio.StreamReader, viewer: asyncio.StreamWriter) -> None:
        if _peer_uid(viewer) not in (None, os.getuid()):
            viewer.close()
            return
        if len(self._viewers) >= MOST_VIEWERS:
            problem = f"{MOST_VIEWERS} viewers watch this run already: close one of them"
            viewer.write(protocol.frame(CommandRefused(problem=problem)))
            viewer.close()
            return
        self._viewers.add(viewer)
        try:
            while True:
                command = await protocol.read_command(reader)
                if isinstance(command, WeighPreset):
                    viewer.write(protocol.frame(await self._answered(command)))
                elif problem := self._obey(command):
                    viewer.write(protocol.frame(CommandRefused(problem=problem)))
        except BadFrame as error:
            viewer.write(protocol.frame(CommandRefused(problem=str(error))))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._viewers.discard(viewer)
            viewer.close()

    async def _answered(self, question: WeighPreset) -> Event:
        if self._answer is None:
            return CommandRefused(problem="the engine does not know its devices yet: ask once it is ready")
        return await asyncio.to_thread(self._answer, question)


def _peer_uid(viewer: asyncio.StreamWriter) -> int | None:
    """Who is at the other end; None where the system cannot say and the directory's mode has to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    peer: socket.socket = viewer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]
