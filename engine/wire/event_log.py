"""The run's history: every event numbered, stamped and appended to `events.jsonl` before anyone is told of it."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import msgspec

from ..base.append import append_regular
from ..base.invalid import Invalid
from ..base.regular_file import open_regular
from .events import AnyEvent, Event
from .framing import LARGEST_EVENT, decode_event_json, decode_event_lines, encode_json

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
Listener = Callable[[Event], None]

CHUNK = 128 * 1024
"""Bytes read at a time: a history does not stand in memory whole, and what fits a processor's cache is read fastest."""


class EventLog:
    """Appends from the training thread; where that waits for a process that is lost, from the one that found it out."""

    def __init__(self, path: Path, listener: Listener) -> None:
        """Raises Invalid where the file cannot be read, OSError where it cannot be written."""
        self._seq, self._whole = _end_of(path)
        """The last number, and whether its line stands in the file to its end."""
        self._file = append_regular(path)
        self._complained = False
        """That the last event could not be written."""
        self._listener = listener
        self._lock = threading.Lock()

    def append(self, event: Event) -> None:
        with self._lock:
            self._seq += 1
            event = msgspec.structs.replace(event, seq=self._seq, time=time.time())
            self._write(encode_json(event) + b"\n")
            self._listener(event)

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        """A full disk must not end the training. A line that was cut short is ended before the next one."""
        try:
            self._whole = self._file.write(line if self._whole else b"\n" + line) >= len(line)
            self._complained = False
        except OSError as error:
            self._whole = False
            if not self._complained:
                self._complained = True
                with contextlib.suppress(OSError):  # engine.log may lie on the same disk
                    print(f"event {self._seq} not written: {error}", file=sys.stderr)


class LogReader:
    """Reads an `events.jsonl` that may still be growing, from where it stopped the last time."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """`offset`: bytes at its beginning to leave out."""
        self._path = path
        self._offset = offset

    def read(self, after: int = 0) -> Iterator[list[AnyEvent]]:
        """Chunks of the events with a `seq` above `after`. A line still being written is left for the next call. Raises
        FileNotFoundError, and Invalid where it cannot be read."""
        with _opened(self._path) as file:
            file.seek(self._offset)
            while whole := _whole_lines(chunk := file.read(CHUNK) + file.readline(LARGEST_EVENT)):
                self._offset += whole
                file.seek(self._offset)
                events = _all_decoded(chunk[:whole])
                if events and events[0].seq <= after:
                    events = [event for event in events if event.seq > after]
                if events:
                    yield events


def last_seq(path: Path) -> int:
    """Of the events in the file; 0 where there is none. Raises Invalid where it cannot be read."""
    return _end_of(path)[0]


def _opened(path: Path) -> BufferedReader:
    """Raises Invalid where there is a file that cannot be read."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}") from error


def _end_of(path: Path) -> tuple[int, bool]:
    """The number of the last event that can be read, and whether the file ends with a whole line."""
    try:
        with _opened(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LARGEST_EVENT))
            tail = file.read(LARGEST_EVENT)
    except FileNotFoundError:
        return 0, True
    seqs = (event.seq for line in reversed(tail.splitlines()) if (event := _decoded(line)))
    return next(seqs, 0), not tail or tail.endswith(b"\n")


def _whole_lines(chunk: bytes) -> int:
    """Bytes of `chunk` up to the end of its last whole line; all of it where that is longer than any event."""
    return chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) > LARGEST_EVENT else 0)


def _all_decoded(lines: bytes) -> list[AnyEvent]:
    """At once, or one by one where one is damaged."""
    try:
        return decode_event_lines(lines)
    except UNREADABLE:
        return [event for line in lines.splitlines() if (event := _decoded(line))]


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return decode_event_json(line)
    except UNREADABLE:
        return None
