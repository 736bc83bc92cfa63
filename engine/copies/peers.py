"""How processes on several hosts keep each other's parts and read them again, over sealed connections."""

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ..distributed.address import LOOPBACK_ADDRESS
from ..distributed.outcomes import Failure
from ..distributed.seal import Forged, Seal
from .channel import MOST_BYTES, SECONDS, Channel
from .part import FILES, Part, Writing, named

MOST_CONNECTIONS = 64
"""Connections that are served at a time; others are closed."""


class Keep(Struct, frozen=True, tag=True):
    """Keep this part. The contents of `FILES` follow, of these sizes; the answer is empty, or what went wrong."""

    part: str
    sizes: list[int]


class Read(Struct, frozen=True, tag=True):
    """Send this range of bytes of a file of a part; in a `size` of null, all that follow."""

    part: str
    file: str
    offset: int
    size: int | None


class Server:
    """Keeps and sends parts in the folder of this host, in threads of its own, until this process ends."""

    def __init__(self, folder: Path, seal: Seal, is_local: bool) -> None:
        """`is_local`: whether all hosts are simulated on this machine. Raises OSError."""
        self._folder, self._seal = folder, seal
        self._listener = _listener(is_local)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._has_complained = False
        threading.Thread(target=self._accept, name="copies-server", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.getsockname()[1]

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="copies-peer", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):  # the peer has ended
                self._answer_all(Channel(connection, self._seal, is_client=False))
        except (Forged, msgspec.DecodeError):
            if not self._has_complained:
                self._has_complained = True
                text = "shardtui: a connection to the port for copies was not sealed with the run's secret: ignored"
                print(text, file=sys.stderr, flush=True)
        finally:
            self._free.release()

    def _answer_all(self, channel: Channel) -> None:
        while True:
            request = msgspec.msgpack.decode(channel.receive(), type=Keep | Read)
            part = named(request.part)
            if part is None or (isinstance(request, Read) and request.file not in FILES):
                return
            if isinstance(request, Keep):
                channel.send(self._keep(channel, part, request.sizes).encode())
            else:
                self._send(channel, self._folder / request.part / request.file, request)

    def _keep(self, channel: Channel, part: Part, sizes: list[int]) -> str:
        """Writes what is received. Returns what went wrong here; the rest is received and dropped then."""
        blocks = _blocks(channel, sizes)
        try:
            with Writing(self._folder, part) as new:
                for file in FILES:
                    (new / file).touch()
                for file, block in blocks:
                    _append(new / file, block)
        except Failure as failure:
            for _ in blocks:
                pass
            return str(failure)
        return ""

    def _send(self, channel: Channel, path: Path, request: Read) -> None:
        with path.open("rb") as file:
            size = path.stat().st_size - request.offset if request.size is None else request.size
            file.seek(request.offset)
            channel.send(msgspec.msgpack.encode(size))
            _send_blocks(channel, file, size)


class Peer:
    """A process on another host, and the connection to it."""

    def __init__(self, address: str, seal: Seal) -> None:
        """`address`: HOST:PORT. Raises OSError, as every method does, and Forged if it has another secret."""
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)
        self._channel = Channel(self._connection, seal, is_client=True)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def keep(self, folder: Path, part: Part) -> None:
        """Has it keep a part of this host's `folder`. Raises Failure if it cannot."""
        paths = [folder / part.name / file for file in FILES]
        sizes = [path.stat().st_size for path in paths]
        self._channel.send(msgspec.msgpack.encode(Keep(part.name, sizes)))
        for path, size in zip(paths, sizes, strict=True):
            with path.open("rb") as file:
                _send_blocks(self._channel, file, size)
        if problem := self._channel.receive().decode():
            raise Failure(problem)

    def read(self, part: Part, file: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns bytes of a file of a part that it keeps."""
        self._channel.send(msgspec.msgpack.encode(Read(part.name, file, offset, size)))
        size = msgspec.msgpack.decode(self._channel.receive(), type=int)
        return b"".join(_received(self._channel, size))


def _listener(is_local: bool) -> socket.socket:
    if is_local or not socket.has_dualstack_ipv6():
        return socket.create_server((LOOPBACK_ADDRESS if is_local else "", 0))
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)


def _send_blocks(channel: Channel, file: BinaryIO, size: int) -> None:
    for first in range(0, size, MOST_BYTES):
        channel.send(file.read(min(MOST_BYTES, size - first)))


def _received(channel: Channel, size: int) -> Iterator[bytes]:
    for _ in range(0, size, MOST_BYTES):
        yield channel.receive()


def _blocks(channel: Channel, sizes: list[int]) -> Iterator[tuple[str, bytes]]:
    """Yields blocks of `FILES`, which have these sizes."""
    for file, size in zip(FILES, sizes, strict=True):
        for block in _received(channel, size):
            yield file, block


def _append(path: Path, block: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(block)
    except OSError as error:
        raise Failure(f"{path.parents[1]}: {error.strerror}") from error
