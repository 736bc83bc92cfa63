"""The TPU slice that was planned last, kept for the next run."""

from contextlib import suppress
from pathlib import Path

from ...engine.base.atomic_write import write_atomically
from ...engine.base.directories import state_directory
from ...engine.base.invalid import Invalid
from ...engine.spec.topology import load_topology

FILE_NAME = "last-slice"


def last_slice() -> str:
    """Returns the slice that was planned last; empty if there is none, or this version does not know it."""
    with suppress(OSError, UnicodeDecodeError, Invalid):
        name = _path().read_text(encoding="ascii").strip()
        load_topology(name)
        return name
    return ""


def remember_slice(name: str) -> None:
    """Keeps the slice for the next run, if the file can be written."""
    with suppress(OSError):
        _path().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_path(), name.encode("ascii"))


def _path() -> Path:
    return state_directory() / FILE_NAME
