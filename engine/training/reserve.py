"""A process in reserve: imports what an engine needs, then waits for its command."""

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from ..base.regular_file import append_regular
from ..wire.engine_command import Assignment

LOWEST_PRIORITY = 19


def assigned(imported: int) -> list[str]:
    """Returns the command line that the supervisor sends on stdin; empty if it has ended.

    Closes the descriptor `imported` once all is imported: nothing is sent before.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine
    threading.Thread(target=_import, args=[imported], name="imports").start()
    line = sys.stdin.buffer.readline()
    if not line:
        return []
    signal.signal(signal.SIGINT, before)
    assignment = msgspec.json.decode(line, type=Assignment)
    if assignment.log:
        with append_regular(Path(assignment.log)) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    return assignment.question


def _import(imported: int) -> None:
    """Imports the engine, at the lowest priority: steps run meanwhile."""
    if sys.platform == "linux":  # where threads have priorities of their own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)

    from . import follow  # noqa: F401 # with all that it imports

    os.close(imported)
