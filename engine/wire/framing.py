"""The wire: events and commands as length-prefixed msgpack.

The same events, one JSON object a line, are the run's `events.jsonl`. That file is the history; the socket carries
only what happens from now on, so a viewer that was away reads the file and then listens.
"""

import asyncio
import struct
from typing import Any

import msgspec

from .commands import AnyCommand, Command
from .events import AnyEvent, Event
from .version import VERSION

LARGEST_COMMAND = 64 * 1024
"""Bytes. Only a preset comes near it."""
LARGEST_EVENT = 64 * 1024 * 1024
"""Bytes. A layout of a model with thousands of arrays stays far below."""

_LENGTH = struct.Struct(">I")


encode_json = msgspec.json.Encoder().encode
_json_decoder = msgspec.json.Decoder(AnyEvent)
decode_event_json, decode_event_lines = _json_decoder.decode, _json_decoder.decode_lines
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(AnyEvent).decode
_decode_command = msgspec.msgpack.Decoder(AnyCommand).decode


class BadFrame(Exception):
    """A frame that cannot be read: too long, or not one of the messages."""


class UnknownMessage(BadFrame):
    """The frame is whole, and the next one can be read."""


def mismatch(viewer: int, engine: int) -> str:
    """Why the two do not talk, and which side to update."""
    said = f"this viewer speaks protocol {viewer}, the run's engine protocol {engine}: "
    if viewer < engine:
        return f"{said}update shardtui here, or attach with the version that trains the run"
    return f"{said}attach with the version that trains the run, or restart the run under this one"


def frame(message: Event | Command) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_command(reader: asyncio.StreamReader) -> AnyCommand:
    """Raises BadFrame, and IncompleteReadError at the end of the stream."""
    return _decoded(_decode_command, await _read_body(reader, LARGEST_COMMAND))


async def read_event(reader: asyncio.StreamReader) -> AnyEvent:
    """Raises BadFrame, and IncompleteReadError at the end of the stream."""
    return _decoded(_decode_event, await _read_body(reader, LARGEST_EVENT))


async def _read_body(reader: asyncio.StreamReader, largest: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > largest:
        raise BadFrame(f"a frame of {length} bytes: at most {largest}")
    return await reader.readexactly(length)


def _decoded(decode: Any, body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnknownMessage(f"not a message of protocol {VERSION}: {error}") from error
