"""The compiled programs that a run keeps, so that going back to a preset costs no compilation."""

import threading

from .program import Program

FEWEST = 2
"""Programs that are kept whatever their size: to switch back and forth compiles nothing."""


class KeptPrograms:
    """By preset, least recently used first. What is over the bound goes in that order, once nothing else holds it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        """Two threads compile."""

    def get(self, preset: str) -> Program | None:
        """Used now, if it is there."""
        with self._lock:
            program = self._programs.pop(preset, None)
            if program is not None:
                self._programs[preset] = program
            return program

    def add(self, program: Program) -> bool:
        """Used now. Says whether others had to go."""
        gone = False
        with self._lock:
            self._programs[program.name] = program
            while len(self._programs) > FEWEST and self.bytes > self.limit_bytes:
                del self._programs[next(iter(self._programs))]
                gone = True
        return gone

    def __contains__(self, preset: str) -> bool:
        return preset in self._programs

    @property
    def presets(self) -> list[str]:
        return list(self._programs)

    @property
    def bytes(self) -> int:
        """Estimated."""
        return sum(program.host_bytes for program in list(self._programs.values()))
