"""Processes in reserve that have imported what an engine needs: the next epoch starts without waiting for that."""

import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..wire.engine_command import Assignment, engine_command, question_of

AFTER_SECONDS = 10.0
"""Seconds from the start of an engine, or the end of a reserved process, until processes are reserved."""


@dataclass(frozen=True)
class Spare:
    """A process in reserve."""

    popen: "subprocess.Popen[bytes]"
    """The process."""
    imported: int
    """A pipe that it closes once all is imported."""

    @property
    def is_ready(self) -> bool:
        """Whether all is imported, or the process has ended."""
        return bool(select.select([self.imported], [], [], 0)[0])

    def given(self, assignment: Assignment) -> bool:
        """Gives it something to do. Returns False if it has ended."""
        os.close(self.imported)
        assert self.popen.stdin
        try:
            self.popen.stdin.write(msgspec.json.encode(assignment) + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            return False
        return True


class Spares:
    """The processes in reserve. They end if this process does."""

    def __init__(self) -> None:
        self._spares: list[Spare] = []
        self._due = 0.0
        """The time from which processes are reserved."""

    def fill(self, count: int) -> None:
        """Reserves processes until there are `count`, some seconds after an engine has started. Call it often."""
        if any(spare.popen.poll() is not None for spare in self._spares):
            self._postpone()
        while len(self._spares) < count and time.monotonic() >= self._due:
            self._spares.append(_reserved())

    def take(self, command: Sequence[str], log: Path | None) -> "subprocess.Popen[bytes] | None":
        """Returns a reserved process that runs an engine's command from now on; None if none is ready.

        It writes to the `log`, or inherits stdout and stderr.
        """
        self._postpone()
        assignment = Assignment(question=question_of(command), log=log and str(log))
        for spare in [spare for spare in self._spares if spare.is_ready]:
            self._spares.remove(spare)
            if spare.given(assignment):
                return spare.popen
        return None

    def _postpone(self) -> None:
        self._due = time.monotonic() + AFTER_SECONDS


def _reserved() -> Spare:
    imported, theirs = os.pipe()
    popen = subprocess.Popen(engine_command("reserve", str(theirs)), stdin=subprocess.PIPE, pass_fds=[theirs])
    os.close(theirs)
    return Spare(popen, imported)
