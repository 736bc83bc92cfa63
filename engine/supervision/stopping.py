"""How signals stop a supervised engine."""

import signal

from .engine import Engine


class Stopping:
    """Counts the signals to stop that arrive from now on: the first stops the engine in order, the second kills it."""

    def __init__(self) -> None:
        self.signals = 0
        """How many have arrived."""
        self._engine: Engine | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())

    def follow(self, engine: Engine) -> None:
        """Takes over an engine that has just been started, and stops it if a signal arrived before."""
        self._engine = engine
        if self.signals:
            engine.signal(signal.SIGTERM)

    def _stop(self) -> None:
        self.signals += 1
        if self._engine is None:
            return
        if self.signals > 1:
            self._engine.kill()
        else:
            self._engine.signal(signal.SIGTERM)
