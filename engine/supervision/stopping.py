"""How signals stop a supervised engine."""

import signal
from typing import Self

from .engine import Engine

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Counts the signals to stop that arrive in this context: the first stops the engine in order, the second kills it.

    After it signals are ignored: the run has ended, and they could only change the exit code.
    """

    def __init__(self) -> None:
        self.signals = 0
        """How many have arrived."""
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            signal.signal(number, lambda *_: self._stop())
        return self

    def __exit__(self, *_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

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
