"""All that the processes print, on stdout and stderr: text from files, models and other hosts, which no terminal obeys.

Characters that a terminal obeys, hides or leaves blank (control characters, escapes, bidirectional overrides,
zero-width and unassigned characters) become visible. Nothing else in `engine` and `tui` prints, and every child process
gets a `Relay` or a file in place of a terminal.
"""

import io
import os
import re
import sys
import threading
import traceback
import unicodedata
from collections import deque
from contextlib import suppress

BLANK_LETTERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Fillers and variation selectors: Unicode classifies them as letters, marks and symbols, but they show nothing."""
MAX_LINE_BYTES = 64 * 1024
"""Longer lines of a child process are divided."""
MAX_LINES = 100
"""Lines of a child process that are kept."""
DRAIN_SECONDS = 2.0
"""Time for the last lines of a child process that has ended: another process that it forked may keep the pipe open."""


def printable(text: str) -> str:
    """Returns the text with blanks as spaces, and what is not printable as Python escapes such as `\\x1b`."""
    if text.isprintable() and (text.isascii() or not BLANK_LETTERS.search(text)):
        return text
    return "".join(map(_visible, text))


def show(*lines: str) -> None:
    if lines:
        print(*map(printable, lines), sep="\n", flush=True)


def note(*lines: str) -> None:
    """Prints lines on stderr, which are lost if it is closed, or a file on a disk that is full."""
    with suppress(OSError):
        if lines:
            print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)


def say(*texts: str) -> None:
    """Prints messages on stderr, each as a line `shardtui: TEXT`."""
    note(*(f"shardtui: {text}" for text in texts))


def note_traceback(error: BaseException) -> None:
    with suppress(BaseException):  # an attribute of a user's exception may raise, too
        note(*"".join(traceback.format_exception(error)).rstrip("\n").split("\n"))


class PrintableStderr(io.TextIOWrapper):
    """Makes printable whatever Python code writes there: warnings, tracebacks, logs, and what a user's model prints."""

    def write(self, text: str, /) -> int:
        super().write("\n".join(map(printable, text.split("\n"))))
        return len(text)


def make_stderr_printable() -> None:
    with suppress(OSError):  # there is no stderr
        sys.stderr = PrintableStderr(os.fdopen(2, "wb", closefd=False), errors="backslashreplace", line_buffering=True)


class Relay:
    """A pipe for the output of child processes. A thread prints it on stderr, line by line."""

    def __init__(self) -> None:
        read, self.descriptor = os.pipe()
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        """The last lines."""
        self._thread = threading.Thread(target=_relay, args=(read, self.lines), name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the last lines. Call it once the processes have ended."""
        os.close(self.descriptor)
        self._thread.join(DRAIN_SECONDS)


def _relay(descriptor: int, last: deque[str]) -> None:
    with suppress(OSError), open(descriptor, "rb") as lines:
        while line := lines.readline(MAX_LINE_BYTES):
            last.append(line.decode(errors="backslashreplace").removesuffix("\n"))
            note(last[-1])


def _visible(character: str) -> str:
    if character in "\n\r\t" or unicodedata.category(character) == "Zs":
        return " "
    if character.isprintable() and not BLANK_LETTERS.match(character):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
