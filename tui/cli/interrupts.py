"""Handles Ctrl-C and SIGTERM while an engine works for a command without UI."""

import asyncio
import signal

from ..client.engine_client import EngineClient
from ..terminal.clean import warn


class Interrupts:
    """Stops the engine after its step on the first signal, and kills it on the second.

    Preempted machines send SIGTERM: an orderly end is then a success.
    """

    def __init__(self, client: EngineClient, message: str) -> None:
        """`message`: what the first signal does, printed on stderr."""
        self.count = 0
        """Signals so far."""
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
        warn(self._message)
