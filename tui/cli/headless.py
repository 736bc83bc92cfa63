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


class Audience:
    """Stops the engine once nobody reads stdout or stderr. The event loop watches pipes also between two lines."""

    def __init__(self, client: EngineClient, message: str) -> None:
        self.is_gone = False
        self._client = client
        self._message = message
        self._stop_request: asyncio.Task[None] | None = None
        for descriptor in filter(_is_pipe, STREAMS):
            asyncio.get_running_loop().add_reader(descriptor, self._on_closed, descriptor)

    @contextmanager
    def reads(self) -> Generator[None]:
        """Drops output in this context that cannot be written: what goes to stderr never raises."""
        try:
            yield
        except OSError:
            self._on_closed(1)

    def _on_closed(self, descriptor: int) -> None:
        """Redirects the descriptor to /dev/null and requests the stop, once."""
        asyncio.get_running_loop().remove_reader(descriptor)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
        if self.is_gone:
            return
        self.is_gone = True
        self._stop_request = asyncio.ensure_future(self._client.request_stop())
        say(f"nobody reads {STREAMS[descriptor]} any more: {self._message}")


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:  # it was closed from the start
        return False


class Interrupts:
    """Stops the engine in order on the first signal, also the SIGTERM of a preemption; kills it on the second."""

    def __init__(self, client: EngineClient, message: str) -> None:
        self.count = 0
        self.by_keyboard = False
        """Whether one of them was SIGINT."""
        self._client = client
        self._message = message
        self._stop_request: asyncio.Task[None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: signal.Signals) -> None:
        self.count += 1
        self.by_keyboard |= number == signal.SIGINT
        if self.count > 1:
            self._client.kill_engine()
            return
        self._stop_request = asyncio.ensure_future(self._client.request_stop())
        say(self._message)


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
