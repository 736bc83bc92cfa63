"""The wire: events and commands as length-prefixed msgpack.

The run's `events.jsonl` contains the same events, one JSON object per line. That file is the history; the socket
carries only new events, so a viewer that reconnects reads the file first and then listens.
"""

import asyncio
import struct
from functools import cache
from typing import Any

import msgspec

from ..base.encoding import encode_msgpack
from .commands import AnyCommand, Command
from .event import VERSION
from .events import AnyEvent, Event

Batch = list[AnyEvent] | None
"""Events that arrive together over ssh: none at the end of the history, None at the engine's end."""
MAX_COMMAND_BYTES = 64 * 1024
"""Only the text of a preset comes near it."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The layout of a model with thousands of arrays is far smaller."""

_LENGTH = struct.Struct(">I")


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)  # the first frame does not wait for it


class BadFrame(Exception):
    """A frame that cannot be read: too long, or not a known message."""


class UnknownMessage(BadFrame):
    """A complete frame with an unknown message; the next frame can be read."""


def mismatch(viewer: int, engine: int) -> str:
    """Returns why viewer and engine cannot communicate, and which side to update."""
    versions = f"this viewer speaks protocol {viewer}, the engine of the run protocol {engine}: "
    if viewer < engine:
        return f"{versions}update shardtui here, or attach with the version that trains the run"
    return f"{versions}attach with the version that trains the run, or restart the run with this version"


def frame(message: Event | Command | Batch) -> bytes:
    """Encodes a message: a big-endian u32 length, then msgpack."""
    body = encode_msgpack(message)
    return _LENGTH.pack(len(body)) + body


def batch_length(received: bytearray) -> int:
    """Returns the bytes of the first frame; 0 if it is not complete. Raises BadFrame if it is too long."""
    if len(received) < _LENGTH.size:
        return 0
    length = _LENGTH.size + _length(received[: _LENGTH.size], MAX_EVENT_BYTES)
    return length if len(received) >= length else 0


def decode_batch(frame: bytes | bytearray) -> Batch:
    return _decoded(Batch, frame[_LENGTH.size :])


async def read_command(reader: asyncio.StreamReader) -> AnyCommand:
    return _decoded(AnyCommand, await _read_body(reader, MAX_COMMAND_BYTES))


async def read_event(reader: asyncio.StreamReader) -> AnyEvent:
    return _decoded(AnyEvent, await _read_body(reader, MAX_EVENT_BYTES))


async def _read_body(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    head = await reader.readexactly(_LENGTH.size)
    return await reader.readexactly(_length(head, max_bytes))


def _length(head: bytes | bytearray, max_bytes: int) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > max_bytes:
        raise BadFrame(f"a frame of {length} bytes: the limit is {max_bytes}")
    return length


def _decoded(kind: Any, body: bytes | bytearray) -> Any:
    try:
        return _decoder(kind).decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnknownMessage(f"not a message of protocol {VERSION}: {error}") from error
