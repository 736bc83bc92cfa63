"""The run's history: every event numbered, stamped and appended to `events.jsonl` before anyone is told of it."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from .protocol import AnyEvent, Event, decode_event_json, encode_json

Listener = Callable[[Event], None]


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

    def read(self) -> list[AnyEvent]:
        """The events since the last call. A line still being written is left for the next; a broken one is skipped."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        whole = chunk.rfind(b"\n") + 1
        self._offset += whole
        return [event for line in chunk[:whole].splitlines() if (event := _decoded(line)) is not None]


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return decode_event_json(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
