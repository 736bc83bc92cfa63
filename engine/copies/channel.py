"""A connection between two processes of a run, on which every message is sealed.

Both sides contribute a nonce, and each message is numbered, so nothing can be replayed or sent back. Messages are not
encrypted, as the collectives of jax are not.
"""

import os
import socket
import struct

from ..distributed.seal import Forged, Seal

NONCE_BYTES = 16
MOST_BYTES = 4 << 20
"""Bytes of a message at most."""
SECONDS = 20.0
"""A peer that neither reads nor writes for so long is given up."""
SIZE = struct.Struct("!I")
MAC_BYTES = 32


class Channel:
    """One end of a connection. Every method raises OSError, and Forged if the other end has another secret."""

    def __init__(self, connection: socket.socket, seal: Seal, is_client: bool) -> None:
        self._connection = connection
        connection.settimeout(SECONDS)
        own = os.urandom(NONCE_BYTES)
        connection.sendall(own)
        theirs = self._received(NONCE_BYTES)
        self._seal = seal.renewed([own, theirs] if is_client else [theirs, own])
        self._own, self._their = ("client", "server") if is_client else ("server", "client")
        self._sent = self._read = 0

    def send(self, message: bytes) -> None:
        """Sends a message of at most `MOST_BYTES`."""
        sealed = self._seal.seal(f"{self._own}/{self._sent}", message)
        self._sent += 1
        self._connection.sendall(SIZE.pack(len(sealed)))
        self._connection.sendall(sealed)

    def receive(self) -> bytes:
        """Waits for a message and returns it."""
        key = f"{self._their}/{self._read}"
        self._read += 1
        (size,) = SIZE.unpack(self._received(SIZE.size))
        if size > MOST_BYTES + MAC_BYTES:
            raise Forged(key)
        return self._seal.open(key, self._received(size))

    def _received(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise ConnectionError("the other process has closed the connection")
            view = view[count:]
        return bytes(buffer)
