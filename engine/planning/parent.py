"""Who asked for an answer: once that process is gone, nobody waits for a compilation of a minute."""

import os
import stat
import threading


def end_with_asker() -> None:
    """Ends this process when the other end of its stdin is closed, where that is a pipe: however the asker ended."""
    try:
        piped = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # there is no stdin
        return
    if piped:
        threading.Thread(target=_wait, name="asker", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
