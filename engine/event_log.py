"""The run's history: every event numbered, stamped and appended to `events.jsonl` before anyone is told of it."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from .protocol import AnyEvent, Event, decode_event_json, encode_json

Listener = Callable[[Event], None]

CHUNK = 4 * 1024 * 1024
"""Bytes read at a time, so that a long history does not stand in memory whole."""


class EventLog:
    """Appends from one thread, the training thread."""

    def __init__(self, path: Path, listener: Listener) -> None:
        self._file = path.open("ab", buffering=0)
        self._listener = listener
        self._seq = 0

    def append(self, event: Event) -> None:
        self._seq += 1
        event = msgspec.structs.replace(event, seq=self._seq, time=time.time())
        try:
            self._file.write(encode_json(event) + b"\n")
        except OSError as error:  # a full disk must not end the training
            print(f"event {self._seq} not written: {error}", file=sys.stderr)
        self._listener(event)


class LogReader:
    """Reads an `events.jsonl` that may still be growing, from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, after: int = 0) -> Iterator[list[AnyEvent]]:
        """Chunks of the events with a `seq` above `after`. A line still being written is left for the next call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while whole := _whole_lines(chunk := file.read(CHUNK)):
                self._offset += whole
                file.seek(self._offset)
                events = [event for line in chunk[:whole].splitlines() if (event := _decoded(line))]
                if fresh := [event for event in events if event.seq > after]:
                    yield fresh


def _whole_lines(chunk: bytes) -> int:
    """Bytes of `chunk` up to the end of its last whole line; all of it where one line is longer than a chunk."""
    return chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) == CHUNK else 0)


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return decode_event_json(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
