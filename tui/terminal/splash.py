"""A line on the terminal that is drawn over, while the UI's modules are imported."""

import contextlib
import os
import sys

COMPLETING = "_ARGCOMPLETE"
"""Environment variable that a shell sets while it completes a command line."""
SPLASH, ERASE = "shardtui ...\r", "\r\x1b[K"


def show() -> None:
    """Prints the splash. What comes next overwrites it: the UI, or a line that says why there is none."""
    _write(SPLASH)


def erase() -> None:
    _write(ERASE)


def fits() -> bool:
    """Returns whether all streams are a terminal that can erase the splash. The UI, too, is drawn on stderr."""
    terminals = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return terminals and os.environ.get("TERM", "dumb") not in ("", "dumb") and COMPLETING not in os.environ


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        print(end=text, file=sys.stderr, flush=True)
