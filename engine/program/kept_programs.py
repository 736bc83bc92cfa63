"""Keeps a run's compiled programs, so that a switch back to a preset needs no compilation."""

import threading

from .program import Program

MIN_PROGRAMS = 2
"""Programs that are kept regardless of size, so that switching back and forth compiles nothing."""


class KeptPrograms:
    """An LRU cache of programs by preset name, bounded by their estimated host memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        """For the two compile threads."""

    def get(self, preset: str) -> Program | None:
        """Returns the preset's program and marks it as used; None if it is not kept."""
        with self._lock:
            program = self._programs.pop(preset, None)
            if program is not None:
                self._programs[preset] = program
            return program

    def add(self, program: Program) -> bool:
        """Adds a program and marks it as used. Returns whether others were evicted."""
        has_evicted = False
        with self._lock:
            self._programs[program.name] = program
            while len(self._programs) > MIN_PROGRAMS and self.bytes > self.limit_bytes:
                del self._programs[next(iter(self._programs))]
                has_evicted = True
        return has_evicted

    def __contains__(self, preset: str) -> bool:
        return preset in self._programs

    @property
    def presets(self) -> list[str]:
        """The presets whose programs are kept, least recently used first."""
        return list(self._programs)

    @property
    def bytes(self) -> int:
        return sum(program.host_bytes for program in list(self._programs.values()))
