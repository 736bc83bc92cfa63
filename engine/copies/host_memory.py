"""The folder in a host's memory that keeps copies of the state: it outlives engine processes. Needs no jax."""

import contextlib
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType

from ..base import figures
from ..base.invalid import Invalid
from ..base.machine import available_memory
from ..spec.epoch import Copying
from ..wire import lock

ROOT = Path("/dev/shm")
"""A file system in memory that every Linux has."""
LOCK = "lock"


class HostMemory:
    """A folder of a supervisor's own, with mode 0700. It is deleted when the context ends."""

    def __init__(self, run: str) -> None:
        """Deletes the folders of supervisors that were killed. Raises Invalid if none can be created."""
        try:
            _delete_abandoned()
            self.folder = Path(mkdtemp(prefix=f"shardtui-{run}-", dir=ROOT))
        except OSError as error:
            raise Invalid(
                f"--copy-every: {ROOT}: copies of the state are kept there, in the memory of this host: "
                f"{error.strerror}: mount a tmpfs there, or omit --copy-every"
            ) from error
        self._lock = lock.take(self.folder / LOCK)

    def __enter__(self) -> "HostMemory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def copying(self, every_steps: int) -> Copying:
        """Returns what an engine has to know."""
        return Copying(every_steps=every_steps, folder=str(self.folder))

    def clear(self) -> None:
        """Deletes all copies: this host did not take part in the last epoch, which may have gone back to an earlier
        step. Call it while no engine runs."""
        for path in entries(self.folder):
            shutil.rmtree(path, ignore_errors=True)


def entries(folder: Path) -> list[Path]:
    """Returns the copies in a folder, also those that are being written; none if the folder was deleted."""
    try:
        return sorted(path for path in folder.iterdir() if path.name != LOCK)
    except OSError:
        return []


def shortage(folder: Path, needed: int) -> str:
    """Returns why a host has no room for `needed` bytes in its folder, with those in use there; empty if it has."""
    try:
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        status = os.statvfs(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    room = min(status.f_bavail * status.f_frsize, available_memory()) + used
    if needed <= room:
        return ""
    return (
        f"{folder.parent}: two copies of what this host keeps take {figures.size(needed)}, but {figures.size(room)} "
        "are free: the run goes on without copies: make room there, or split the state among more hosts"
    )


def _delete_abandoned() -> None:
    for path in ROOT.glob("shardtui-*"):
        with contextlib.suppress(OSError):
            is_own = path.stat().st_uid == os.getuid() and (path / LOCK).exists()
            if is_own and lock.holder(path / LOCK) is None:
                shutil.rmtree(path, ignore_errors=True)
