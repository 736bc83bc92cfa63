"""The run's history: every event gets a number and a time, and is appended to `events.jsonl` before it is sent."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from io import BufferedReader
from itertools import chain
from pathlib import Path

import msgspec

from ..base.encoding import encode_json
from ..base.output import say
from ..base.regular_file import append_regular, open_regular
from ..base.user_error import UserError
from .events import (
    AnyEvent,
    ClockChanged,
    EngineStarted,
    Event,
    HostsMeasured,
    MemoryMeasured,
    PresetCompiled,
    PresetInspected,
    ProgramsKept,
    StepsDone,
)
from .framing import MAX_EVENT_BYTES

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
Listener = Callable[[Event], None]
"""Called with each event after it was appended."""

CHUNK_BYTES = 128 * 1024
"""Bytes read at a time: a long history need not fit in memory, and a chunk that fits the CPU cache reads fastest."""
BACKWARD_BYTES = 1024 * 1024
"""Bytes read at a time from the end: a line that does not fit is put together from several reads."""
LEAST_JUMP_SECONDS = 1.0
"""If the clock jumps by less, a time service corrects that by and by."""


def _line_start(kind: type[Event]) -> bytes:
    return f'{{"type":"{kind.__name__}"'.encode()


STEPS = _line_start(StepsDone)
"""Begins the line of a report of steps."""
UNDECIDING = tuple(map(_line_start, (MemoryMeasured, HostsMeasured, PresetCompiled, PresetInspected, ProgramsKept)))
"""Begin the lines of events that are frequent or large, and decide neither phase nor preset nor step."""


class EventLog:
    """Appends events, usually from the training thread; if that waits for a lost process, from the one that noticed."""

    def __init__(self, path: Path, listener: Listener) -> None:
        """Raises UserError if the file cannot be read, OSError if it cannot be written."""
        self._seq, self._is_complete = _tail_of(path)
        """Number of the last event, and whether its line in the file is complete."""
        self._file = append_regular(path)
        self._has_reported = False
        """True once a failed write was reported, until one succeeds."""
        self._listener = listener
        self._clock_ahead = _clock_ahead()
        self._lock = threading.Lock()

    def append(self, event: Event) -> None:
        """Numbers and stamps the event, writes it, and calls the listener. From any thread."""
        with self._lock:
            ahead = _clock_ahead()
            if abs(seconds := ahead - self._clock_ahead) >= LEAST_JUMP_SECONDS:
                self._clock_ahead = ahead
                self._append(ClockChanged(seconds=seconds))
            self._append(event)

    def _append(self, event: Event) -> None:
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
        """Writes a line, and first ends a truncated one. Ignores errors: a full disk must not end the training."""
        if not self._is_complete:
            line = b"\n" + line
        try:
            self._is_complete = self._file.write(line) == len(line)
            self._has_reported = False
        except OSError as error:
            self._is_complete = False
            if not self._has_reported:
                self._has_reported = True
                say(f"event {self._seq} not written: {error}")


class LogReader:
    """Reads an `events.jsonl` that may still be growing; each call continues after the last line read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """`offset`: number of bytes to skip at the beginning."""
        self._path = path
        self._offset = offset
        self.unreadable_lines = 0
        """Lines read so far that are no event of this version."""

    def read(self, after: int = 0) -> Iterator[list[AnyEvent]]:
        """Yields chunks of the events with a `seq` above `after`. Leaves an incomplete last line for the next call.

        Raises FileNotFoundError, and UserError if the file cannot be read.
        """
        with _opened(self._path) as file:
            file.seek(self._offset)
            while complete := _complete_bytes(chunk := file.read(CHUNK_BYTES) + file.readline(MAX_EVENT_BYTES)):
                self._offset += complete
                file.seek(self._offset)
                events, unreadable = _all_decoded(chunk[:complete])
                self.unreadable_lines += unreadable
                if events and events[0].seq <= after:
                    events = [event for event in events if event.seq > after]
                if events:
                    yield events


def last_seq(path: Path) -> int:
    return _tail_of(path)[0]


def deciding_events(path: Path) -> list[AnyEvent]:
    """Returns, in order, the events that decide how a run is now: phase, preset, and steps with their last losses.

    Reads backwards to the start of the last engine and at least one report of steps, and decodes only what it returns:
    of the steps, the last report. Raises FileNotFoundError, and UserError if the file cannot be read.
    """
    found: list[AnyEvent] = []
    missing = {EngineStarted, StepsDone}
    with _opened(path) as file:
        for line in _lines_backwards(file):
            if line.startswith(UNDECIDING if StepsDone in missing else (*UNDECIDING, STEPS)):
                continue
            if event := _decoded(line):
                found.append(event)
                missing.discard(type(event))
            if not missing:
                break
    return found[::-1]


def _clock_ahead() -> float:
    """Returns the seconds by which the clock, which an administrator, a time service or a virtual machine may set, is
    ahead of one that nothing sets, and that counts on while the machine sleeps."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _lines_backwards(file: BufferedReader) -> Iterator[bytes]:
    """Yields the lines, the last one first; not those longer than any event."""
    begin, rest = file.seek(0, os.SEEK_END), b""
    while begin:
        end, begin = begin, max(0, begin - BACKWARD_BYTES)
        file.seek(begin)
        rest, *lines = (file.read(end - begin) + rest).split(b"\n")
        yield from reversed(lines)
        rest = rest if len(rest) <= MAX_EVENT_BYTES else b""
    yield rest


def _opened(path: Path) -> BufferedReader:
    """Opens the file. Raises FileNotFoundError, and UserError if it cannot be read."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _tail_of(path: Path) -> tuple[int, bool]:
    """Returns the number of the last readable event, and whether the last line is complete."""
    try:
        with _opened(path) as file:
            lines = _lines_backwards(file)
            incomplete = next(lines)
            seqs = (event.seq for line in chain([incomplete], lines) if (event := _decoded(line)))
            return next(seqs, 0), not incomplete
    except FileNotFoundError:
        return 0, True


def _complete_bytes(chunk: bytes) -> int:
    """Returns the bytes up to the end of the last complete line; all of them if `chunk` is longer than any event."""
    return chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) > MAX_EVENT_BYTES else 0)


def _all_decoded(lines: bytes) -> tuple[list[AnyEvent], int]:
    """Decodes all lines at once; one by one if any is damaged. Returns the events and the number of damaged lines."""
    try:
        return _decoder().decode_lines(lines), 0
    except UNREADABLE:
        decoded = [_decoded(line) for line in lines.splitlines() if line.strip()]
        return [event for event in decoded if event], decoded.count(None)


@cache
def _decoder() -> msgspec.json.Decoder[AnyEvent]:
    return msgspec.json.Decoder(AnyEvent)  # the first frame does not wait for it


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return _decoder().decode(line)
    except UNREADABLE:
        return None
