"""What a watched program prints, as events of its run."""

import time
from pathlib import Path

from ..wire.events import Printed

EVERY_SECONDS = 0.5
MOST_LINES = 20
"""Lines in a report; of more, the last ones. The file has all."""
MOST_CHARACTERS = 500
"""Of a line."""


class ProgramOutput:
    """Reads the file that the program prints to."""

    def __init__(self, file: Path, moved_to: Path) -> None:
        """Moves the file, which the program has open, to the run's directory."""
        file.replace(moved_to)
        self._file = moved_to.open("rb")
        self._rest = b""
        self._last = time.monotonic()

    def read(self, is_end: bool = False) -> Printed | None:
        """Returns the lines since the last report; None if there are none, or they are not due yet."""
        if not is_end and time.monotonic() - self._last < EVERY_SECONDS:
            return None
        self._last = time.monotonic()
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        if is_end and self._rest:
            lines.append(self._rest)
        if not lines:
            return None
        texts = [line.decode(errors="replace")[:MOST_CHARACTERS] for line in lines[-MOST_LINES:]]
        return Printed(lines=texts, left_out=len(lines) - len(texts))
