"""A run's history beside its checkpoints, so that it goes on where the host of process 0 is another one."""

import contextlib
import shutil
from pathlib import Path

from ..base.regular_file import append_regular

COPIED_BYTES = 1 << 20
"""Bytes that are copied at once."""
COMPARED_BYTES = 4096
"""Bytes at the end of the copy by which a log that goes on from it is known."""


class History:
    """The event log of this host, and its copy that all hosts share."""

    def __init__(self, own: Path, shared: Path) -> None:
        self._own, self._shared = own, shared

    def fetch(self) -> None:
        """Replaces this host's log by the shared copy, unless it goes on from there. Only while no engine writes it."""
        if self._shared.exists() and not self._goes_on():
            new = self._own.with_name(f"{self._own.name}.new")
            shutil.copyfile(self._shared, new)
            new.replace(self._own)

    def publish(self) -> None:
        """Appends to the copy what was written here since. Ignores a failing storage: the next call copies the rest."""
        with contextlib.suppress(OSError), self._own.open("rb") as own, append_regular(self._shared) as shared:
            own.seek(shared.seek(0, 2))
            while chunk := own.read(COPIED_BYTES):
                shared.write(chunk)

    def _goes_on(self) -> bool:
        """Whether this host's log begins with the copy, as far as the end of the copy tells."""
        if not self._own.exists():
            return False
        with self._own.open("rb") as own, self._shared.open("rb") as shared:
            start = max(0, shared.seek(0, 2) - COMPARED_BYTES)
            shared.seek(start)
            own.seek(start)
            ending = shared.read()
            return own.read(len(ending)) == ending
