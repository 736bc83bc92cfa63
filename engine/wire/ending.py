"""How a supervised engine process ended, which it writes for its supervisor."""

import contextlib
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ..base.atomic_write import write_atomically

Kind = Literal["finished", "stopped", "refused", "failed", "lost", "killed", "stuck"]
"""`finished`: all steps are done; `stopped`: by a command or a signal; `refused`: the request was invalid; `failed`: an
error in this process; `lost`: another process was lost; `killed`: it wrote nothing, its supervisor concludes it;
`stuck`: it made no progress, and the others waited for it."""


class Ending(Struct, frozen=True, kw_only=True):
    """How one process of an engine ended."""

    kind: Kind
    step: int = 0
    problems: list[str] = []
    lost: dict[int, str] = {}
    """Why other processes were lost, by process index."""
    fits: int | None = None
    """Number of processes on which a preset fits, if none fits on this attempt's; else null."""
    wrong: dict[int, list[int]] = {}
    """Ids of devices that do not hold what their replicas hold, by process index: the run goes on without them."""

    @property
    def is_orderly(self) -> bool:
        return self.kind in ("finished", "stopped")

    @property
    def fault(self) -> tuple[str, ...]:
        """The part that endings share if the same fault repeats: without the line and seconds of a stuck one."""
        return (self.kind,) if self.kind == "stuck" else (self.kind, *self.problems)

    @property
    def why(self) -> str:
        return "; ".join([*self.problems, *self.lost.values()]) or self.kind


def write_ending(path: Path, ending: Ending) -> None:
    """Writes the file; ignores a full disk, as the process ends in any case."""
    with contextlib.suppress(OSError):
        write_atomically(path, msgspec.json.encode(ending))


def read_ending(path: Path) -> Ending | None:
    """Returns what the process wrote; None if it wrote nothing."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ending)
    except (OSError, msgspec.DecodeError):
        return None
