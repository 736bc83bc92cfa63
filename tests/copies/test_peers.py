"""Processes that keep each other's parts, over real sockets."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.copies import channel
from shardtui.engine.copies.channel import MOST_BYTES, NONCE_BYTES, Channel
from shardtui.engine.copies.part import FILES, SHARDS, Part, parts_in
from shardtui.engine.copies.peers import Peer, Read, Server
from shardtui.engine.distributed.outcomes import Failure
from shardtui.engine.distributed.seal import Forged, Seal

from ..checkpoint.test_checkpoint import Bench
from .test_copies import bench, files_of_at_most, made

__all__ = ["bench"]

SEAL = Seal(b"the secret of a run")
PART = Part(20, 1, 3, 4)
SIZES = (100, 0, 2 * MOST_BYTES + 5)
"""Of its files."""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a part."""
    for file, size in zip(FILES, SIZES, strict=True):
        path = tmp_path / "own" / PART.name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    return tmp_path / "own"


@pytest.fixture
def their(tmp_path: Path) -> Path:
    (tmp_path / "their").mkdir()
    return tmp_path / "their"


@pytest.fixture
def address(their: Path) -> str:
    """Where a process keeps parts in `their`."""
    return f"127.0.0.1:{Server(their, SEAL, is_local=True).port}"


def test_a_part_is_kept_and_read_again(own: Path, their: Path, address: str) -> None:
    with Peer(address, SEAL) as peer:
        peer.keep(own, PART)
        assert parts_in(their) == [PART]
        for file in FILES:
            content = (own / PART.name / file).read_bytes()
            assert (their / PART.name / file).read_bytes() == content
            assert peer.read(PART, file) == content
        assert peer.read(PART, SHARDS, 7, 11) == content[7:18]


def test_nothing_is_kept_for_who_has_another_secret(own: Path, their: Path, address: str) -> None:
    with Peer(address, Seal(b"the secret of another")) as peer, pytest.raises((OSError, Forged)):
        peer.keep(own, PART)
    assert list(their.iterdir()) == []


def test_what_was_said_before_cannot_be_said_again(own: Path, their: Path, address: str) -> None:
    """Each connection has nonces of both ends."""
    host, _, port = address.rpartition(":")
    recorded = bytearray()

    class Recorded(socket.socket):
        def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
            recorded.extend(data)
            super().sendall(data, flags)

    with Recorded() as connection:
        connection.connect((host, int(port)))
        channel = Channel(connection, SEAL, is_client=True)
        channel.send(msgspec.msgpack.encode(Read(PART.name, SHARDS, 0, None)))
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(recorded)
        assert len(connection.recv(NONCE_BYTES, socket.MSG_WAITALL)) == NONCE_BYTES
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b"", "it is not answered"


@pytest.mark.parametrize(("part", "file"), [("../own", SHARDS), (PART.name, "../../own/lock")])
def test_only_files_of_parts_are_read(own: Path, address: str, part: str, file: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        channel = Channel(connection, SEAL, is_client=True)
        channel.send(msgspec.msgpack.encode(Read(part, file, 0, None)))
        with pytest.raises(OSError):
            channel.receive()


def test_a_host_without_room_says_so(own: Path, their: Path, address: str) -> None:
    with Peer(address, SEAL) as peer:
        with files_of_at_most(MOST_BYTES), pytest.raises(Failure, match=f"{their}: File too large"):
            peer.keep(own, PART)
        assert list(their.iterdir()) == []
        peer.keep(own, PART)
    assert parts_in(their) == [PART]


def test_a_silent_connection_holds_up_nobody(own: Path, their: Path, address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))), Peer(address, SEAL) as peer:
        peer.keep(own, PART)
    assert parts_in(their) == [PART]


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a peer that does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            connections.append(listener.accept()[0])
            connections[0].sendall(bytes(NONCE_BYTES))

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()
        for connection in connections:
            connection.close()


def test_a_peer_that_does_not_read_is_given_up(
    own: Path, deaf: str, tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = made(tmp_path, bench, epoch=1).copies
    copies.folder = own
    monkeypatch.setattr(copies.neighbours, "peer", lambda _: Peer(deaf, SEAL))
    monkeypatch.setattr(channel, "SECONDS", 0.2)
    assert copies.send(PART, 1) == ["process 1 does not keep it: timed out"]
