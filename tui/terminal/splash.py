"""A word on the terminal while what the UI needs is imported."""

import contextlib
import os
import sys

SPLASH, ERASE = "shardtui ...\r", "\r\x1b[K"


def show() -> None:
    """What comes next is written over it: the UI, or a line that says why there is none."""
    _write(SPLASH)


def erase() -> None:
    """Leaves the line empty, whatever is left of a splash on it."""
    _write(ERASE)


def fits() -> bool:
    """On terminals that can erase it. The UI is drawn on stderr, and the splash too."""
    terminals = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return terminals and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        print(end=text, file=sys.stderr, flush=True)
