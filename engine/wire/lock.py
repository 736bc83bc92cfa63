"""The lock of a run: its engine holds an flock on the file while it lives, which the kernel releases however it ends.

The text of the file says which process that is. A process id is reused, and means another process in another container
or on another host: so the boot, the namespace of process ids and the start of the process stand beside it.
"""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from ..base.append import append_regular
from ..base.invalid import Invalid
from ..base.regular_file import open_regular

PATIENCE_SECONDS = 1.0
"""To take a lock: `holder` takes it for a moment to look."""
SETTLING_SECONDS = 0.02
"""From taking the lock to having written who did."""
LONGEST_TEXT = 256


@dataclass(frozen=True)
class Holder:
    """Who holds the lock of a run."""

    pid: int
    """0 where it is not known yet."""
    where: Literal["here", "elsewhere", "gone"]
    """`elsewhere`: `pid` is of another container or host. `gone`: that process has ended, and one that it forked holds
    the lock. In both cases `pid` may be a process here that has nothing to do with the run."""

    @property
    def is_here(self) -> bool:
        """`pid` may be shown and signalled."""
        return self.where == "here"

    @property
    def is_alive(self) -> bool:
        return self.where != "gone"

    @property
    def words(self) -> str:
        match self.where:
            case "here":
                return f"process {self.pid}"
            case "elsewhere":
                return f"process {self.pid or '?'} of another host or container"
            case "gone":
                return f"a process forked by process {self.pid}, which has ended,"


def take(path: Path) -> BinaryIO:
    """The lock stays taken while the returned file is open. Raises Invalid where another holds it."""
    try:
        lock = append_regular(path)
    except OSError as error:
        raise Invalid(f"{path}: cannot be locked: {error.strerror}: remove it") from error
    until = time.monotonic() + PATIENCE_SECONDS
    while not _locked(lock, fcntl.LOCK_EX):
        if time.monotonic() > until:
            found = holder(path)
            lock.close()
            raise Invalid(f"run {path.parent.name}: {found.words if found else 'another process'} holds its lock")
        time.sleep(0.05)
    try:
        lock.truncate(0)
        lock.write(" ".join([str(os.getpid()), *_marks(os.getpid())]).encode() + b"\n")
    except OSError as error:
        lock.close()
        raise Invalid(f"{path}: cannot be written: {error.strerror}") from error
    return lock


def holder(path: Path) -> Holder | None:
    """None where nobody holds the lock."""
    found = _looked_up(path)
    if found is None or found.is_here:
        return found
    time.sleep(SETTLING_SECONDS)
    return _looked_up(path)


def _looked_up(path: Path) -> Holder | None:
    try:
        with open_regular(path) as lock:
            return None if _locked(lock, fcntl.LOCK_SH) else _read(lock.read(LONGEST_TEXT).decode(errors="replace"))
    except OSError:
        return None


def _read(text: str) -> Holder:
    """As `take` wrote it, or as earlier versions did: the process id alone."""
    number, *marks = text.split() or ["0"]
    pid = int(number) if number.isascii() and number.isdecimal() else 0
    if not pid:
        return Holder(0, "elsewhere")
    if not marks:
        return Holder(pid, "here" if _exists(pid) else "elsewhere")
    if marks[:2] != _marks(os.getpid())[:2]:
        return Holder(pid, "elsewhere")
    return Holder(pid, "here" if marks == _marks(pid) else "gone")


def _marks(pid: int) -> list[str]:
    """What tells the process from others of the same id: boot, namespace, start. None where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 # not a path
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # proc_pid_stat(5), field 22
    except (OSError, IndexError):
        return []
    return [boot, namespace, began]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def _locked(lock: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
