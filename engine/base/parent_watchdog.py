"""Ends a process once its parent is gone: nothing waits for its answer, or would start it again, any more."""

import os
import stat
import threading
from collections.abc import Callable


def end_with_parent(received: Callable[[bytes], object] = bool) -> None:
    """Starts a thread that exits this process when its stdin closes, if that is a pipe: however the parent ended.
    `received` is called there with what the parent writes."""
    try:
        piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # there is no stdin
        return
    if piped:
        threading.Thread(target=_wait, args=(received,), name="parent watchdog", daemon=True).start()


def _wait(received: Callable[[bytes], object]) -> None:
    while data := os.read(0, 4096):
        received(data)
    os._exit(1)
