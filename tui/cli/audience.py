"""Detects that nobody reads stdout or stderr any more while an engine works for a command without UI."""

import asyncio
import os
import select
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

from ..client.engine_client import EngineClient
from ..terminal.clean import warn

STREAMS = {1: "stdout", 2: "stderr"}


class Audience:
    """Stops the engine once the reader of stdout or stderr closes it, since nobody would notice that it runs.

    The event loop watches pipes, so that this is detected between two lines as well.
    """

    def __init__(self, client: EngineClient, message: str) -> None:
        """`message`: what the engine does then, printed on stderr."""
        self.is_gone = False
        """Whether a reader has closed stdout or stderr."""
        self._client = client
        self._message = message
        self._stop_request: asyncio.Task[None] | None = None
        for descriptor in filter(_is_pipe, STREAMS):
            asyncio.get_running_loop().add_reader(descriptor, self._on_closed, descriptor)

    @contextmanager
    def reads(self) -> Generator[None]:
        """Drops output in this context that cannot be written."""
        try:
            yield
        except OSError:
            for descriptor in list(filter(_is_closed, STREAMS)) or [1]:
                self._on_closed(descriptor)

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
        with suppress(OSError):
            warn(f"nobody reads {STREAMS[descriptor]} any more: {self._message}")


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:  # it was closed from the start
        return False


def _is_closed(descriptor: int) -> bool:
    """Returns whether the reader has closed its end."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # no events but hang-up and error, which are always reported
    return bool(waiting.poll(0))
