"""Who reads what a command without UI prints while an engine works for it."""

import asyncio
import os
import select
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

from ..client.engine_client import EngineClient
from ..terminal.clean import warn

NAMES = {1: "stdout", 2: "stderr"}


class Audience:
    """Once stdout or stderr is closed at its other end, the engine is asked to stop: nobody would know that it goes on.

    A pipe is watched, so that this is seen between two lines as well.
    """

    def __init__(self, client: EngineClient, says: str) -> None:
        """`says`: what the engine does then, for stderr."""
        self.is_gone = False
        self._client = client
        self._says = says
        self._asking: asyncio.Task[None] | None = None
        for descriptor in filter(_is_pipe, NAMES):
            asyncio.get_running_loop().add_reader(descriptor, self._lose, descriptor)

    @contextmanager
    def reads(self) -> Generator[None]:
        """What is printed in this context; what cannot be is left out."""
        try:
            yield
        except OSError:
            for descriptor in list(filter(_is_closed, NAMES)) or [1]:
                self._lose(descriptor)

    def _lose(self, descriptor: int) -> None:
        """What is still printed goes nowhere, without a word."""
        asyncio.get_running_loop().remove_reader(descriptor)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
        if self.is_gone:
            return
        self.is_gone = True
        self._asking = asyncio.ensure_future(self._client.ask_to_stop())
        with suppress(OSError):
            warn(f"nobody reads {NAMES[descriptor]} any more: {self._says}")


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:  # it was closed from the start
        return False


def _is_closed(descriptor: int) -> bool:
    """At the other end."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # of no event but those that are always told
    return bool(waiting.poll(0))
