"""Ends a process once its parent is gone: nothing waits for its answer, or would start it again, any more."""

import os
import stat
import threading


def end_with_parent() -> None:
    """Starts a thread that exits this process when its stdin closes, if that is a pipe: however the parent ended."""
    try:
        piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # there is no stdin
        return
    if piped:
        threading.Thread(target=_wait, name="parent watchdog", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
