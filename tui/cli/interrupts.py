"""Ctrl-C and SIGTERM while an engine works for a command without UI."""

import asyncio
import signal

from ..client.engine_client import EngineClient
from ..terminal.clean import warn


class Interrupts:
    """Once: the engine stops after its step, which `says` tells. Twice: it is killed.

    SIGTERM is how machines are taken back: to have ended in order is then to have done well.
    """

    def __init__(self, client: EngineClient, says: str) -> None:
        self.count = 0
        self.by_keyboard = False
        self._client = client
        self._says = says
        self._sending: asyncio.Task[None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: signal.Signals) -> None:
        self.count += 1
        self.by_keyboard |= number == signal.SIGINT
        if self.count > 1:
            self._client.kill_engine()
            return
        self._sending = asyncio.ensure_future(self._client.ask_to_stop())
        warn(self._says)
