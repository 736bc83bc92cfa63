"""How the UI ends when a signal tells it to or its terminal is gone: in order where that works, by force where not.

Who writes to a terminal that is gone or stands still may wait for ever, and the event loop with it. So the signals have
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
GRACE_SECONDS = 0.6
"""For the way in order. It takes 0.1 s."""
RESTORE = (
    b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?2048l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""What Textual writes when it leaves: no mouse, no pasting or focus told, the usual screen, the cursor."""


class Ending:
    def __init__(self, leave: Callable[[], object]) -> None:
        """`leave` is called in the event loop that runs now. To be made before anything is written to the terminal."""
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._attributes = termios.tcgetattr(0)
        self._told, self._tell = os.pipe()
        for number in SIGNALS:
            signal.signal(number, self._take)
        threading.Thread(target=self._see_to_it, name="ending", daemon=True).start()

    def _take(self, number: int, _: FrameType | None) -> None:
        os.write(self._tell, bytes([number]))

    def _see_to_it(self) -> None:
        waiting = select.poll()
        waiting.register(0, 0)  # of no event but the hang-up, which is always told
        waiting.register(self._told, select.POLLIN)
        waiting.poll()
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._leave)
        time.sleep(GRACE_SECONDS)
        self._restore()
        os._exit(1)

    def _restore(self) -> None:
        """As far as that can be done without waiting."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSANOW, self._attributes)
            if select.select([], [2], [], 0)[1]:
                os.write(2, RESTORE)
