"""Commands without UI while an engine works: Ctrl-C and SIGTERM, a closed stdout or stderr, and lines of progress."""

import asyncio
import os
import signal
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager

from ...engine.base.output import say
from ..client.engine_client import EngineClient

STREAMS = {1: "stdout", 2: "stderr"}


class StopRequests:
    """Stops the engine in order on the first signal, also the SIGTERM of a preemption, and once nobody reads stdout or
    stderr; kills it on the second signal. The event loop watches pipes also between two lines."""

    def __init__(self, client: EngineClient, message: str) -> None:
        """`message`: what the engine does once it is asked to stop."""
        self.signals = 0
        self.is_unread = False
        self.is_by_keyboard = False
        """Whether one of the signals was SIGINT."""
        self._client = client
        self._message = message
        self._request: asyncio.Task[None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)
        for descriptor in STREAMS:
            if file_type(descriptor) == stat.S_IFIFO:
                asyncio.get_running_loop().add_reader(descriptor, self._on_closed, descriptor)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Drops output in this context that cannot be written: what goes to stderr never raises."""
        try:
            yield
        except OSError:
            self._on_closed(1)

    def _interrupt(self, number: signal.Signals) -> None:
        self.signals += 1
        self.is_by_keyboard |= number == signal.SIGINT
        if self.signals > 1:
            self._client.kill_engine()
        else:
            self._stop(f"{self._message}; press again to kill the engine")

    def _on_closed(self, descriptor: int) -> None:
        """Redirects the descriptor to /dev/null and requests the stop, once."""
        asyncio.get_running_loop().remove_reader(descriptor)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
        if not self.is_unread:
            self.is_unread = True
            self._stop(f"nobody reads {STREAMS[descriptor]} any more: {self._message}")

    def _stop(self, words: str) -> None:
        self._request = self._request or asyncio.ensure_future(self._client.request_stop())
        say(words)


def file_type(descriptor: int) -> int:
    """Returns the type, as `stat` names it; 0 if the descriptor was closed from the start."""
    try:
        return stat.S_IFMT(os.fstat(descriptor).st_mode)
    except OSError:
        return 0


PROGRESS_SECONDS = 2.0
"""Least time between two lines of progress."""


class Throttle:
    def __init__(self) -> None:
        self._last: float | None = None

    def is_due(self) -> bool:
        """Returns True on the first call, and again once `PROGRESS_SECONDS` have passed since it last returned True."""
        now = time.monotonic()
        if self._last is not None and now - self._last <= PROGRESS_SECONDS:
            return False
        self._last = now
        return True
