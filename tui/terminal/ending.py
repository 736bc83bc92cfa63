"""Exits the UI on a signal or when its terminal is gone: cleanly if possible, otherwise by force.

A write to a terminal that is gone or suspended can block for ever, and the event loop with it. So the signals have
plain handlers, which run even then, and a thread waits for them and for the hang-up.
"""

import asyncio
import contextlib
import os
import select
import signal
import termios
import threading
import time
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)
EXIT_SECONDS = 0.6
"""Time for a clean exit, which takes about 0.1 s."""
RESTORE = (
    b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?2048l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""The bytes that Textual writes when it exits: no reports of mouse, paste and focus, the main screen, the cursor."""


class Ending:
    """Waits for a signal or a hang-up, then ends the process."""

    def __init__(self, leave: Callable[[], object]) -> None:
        """`leave` is called in the running event loop. Create this before anything is written to the terminal."""
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._attributes = termios.tcgetattr(0)
        self._wake_read, self._wake_write = os.pipe()
        for number in SIGNALS:
            signal.signal(number, self._wake)
        threading.Thread(target=self._wait_and_exit, name="ending", daemon=True).start()

    def _wake(self, number: int, _: FrameType | None) -> None:
        os.write(self._wake_write, bytes([number]))

    def _wait_and_exit(self) -> None:
        waiting = select.poll()
        waiting.register(0, 0)  # no events requested: a hang-up is always reported
        waiting.register(self._wake_read, select.POLLIN)
        waiting.poll()
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._leave)
        time.sleep(EXIT_SECONDS)
        self._restore()
        os._exit(1)

    def _restore(self) -> None:
        """Restores the terminal as far as possible without waiting."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSANOW, self._attributes)
            if select.select([], [2], [], 0)[1]:
                os.write(2, RESTORE)
