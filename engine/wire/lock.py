"""The lock of a run: its engine holds an flock on the file, which the kernel releases when the process ends.

The file's text identifies that process. A process id alone is ambiguous: it is reused, and means another process in
another container or on another host. So the text also has the boot id, the pid namespace and the process's start time.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct

from ..base.processes import status
from ..base.regular_file import append_regular, open_regular
from ..base.user_error import UserError

TIMEOUT_SECONDS = 1.0
"""Timeout for taking the lock: `holder` takes it briefly to check whether it is free."""
WRITE_SECONDS = 0.02
"""Time between taking the lock and having written the file's text."""
MAX_TEXT_BYTES = 256


class Holder(Struct, frozen=True):
    """The process that holds the lock of a run."""

    pid: int
    """Process id; 0 while unknown."""
    where: Literal["here", "elsewhere", "gone"]
    """`elsewhere`: `pid` belongs to another container or host. `gone`: that process has ended, and one that it forked
    holds the lock. In both cases a local process with this id may be unrelated to the run."""

    @property
    def is_here(self) -> bool:
        return self.where == "here"

    @property
    def is_alive(self) -> bool:
        """False if the engine has ended and only a process it forked holds the lock."""
        return self.where != "gone"

    @property
    def description(self) -> str:
        match self.where:
            case "here":
                return f"process {self.pid}"
            case "elsewhere":
                return f"process {self.pid or '?'} of another host or container"
            case "gone":
                return f"a process forked by process {self.pid}, which has ended,"


def take(path: Path) -> BinaryIO:
    """Takes the lock, which is held while the returned file is open. Raises UserError if another process holds it."""
    try:
        lock = append_regular(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be locked: {error.strerror}: remove it") from error
    until = time.monotonic() + TIMEOUT_SECONDS
    while not _try_lock(lock, fcntl.LOCK_EX):
        if time.monotonic() > until:
            found = holder(path)
            lock.close()
            raise UserError(
                f"run {path.parent.name}: {found.description if found else 'another process'} holds its lock: "
                f"end it first, for example with `shardtui stop {path.parent.name}`"
            )
        time.sleep(0.05)
    try:
        lock.truncate(0)
        lock.write(own_text().encode() + b"\n")
    except OSError as error:
        lock.close()
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    return lock


def holder(path: Path) -> Holder | None:
    """Returns the process that holds the lock; None if it is free."""
    found = _current_holder(path)
    if found is None or found.is_here:
        return found
    time.sleep(WRITE_SECONDS)
    return _current_holder(path)


def _current_holder(path: Path) -> Holder | None:
    try:
        with open_regular(path) as lock:
            if _try_lock(lock, fcntl.LOCK_SH):
                return None
            return parsed(lock.read(MAX_TEXT_BYTES).decode(errors="replace"))
    except OSError:
        return None


def own_text() -> str:
    """Returns what identifies this process, for `parsed`."""
    return " ".join([str(os.getpid()), *_identity(os.getpid())])


def parsed(text: str) -> Holder:
    """Parses what `own_text` returned in a process."""
    number, *identity = text.split() or ["0"]
    pid = int(number) if number.isascii() and number.isdecimal() else 0
    if not pid or identity[:2] != _identity(os.getpid())[:2]:
        return Holder(pid, "elsewhere")
    return Holder(pid, "here" if identity == _identity(pid) else "gone")


def _identity(pid: int) -> list[str]:
    """Returns boot id, pid namespace and start time, which make a process id unique; empty if the process has ended."""
    state, *fields = status(pid)
    if state in "ZX":
        return []
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 # not a path
    return [boot, namespace, fields[18]]


def _try_lock(lock: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
