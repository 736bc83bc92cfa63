"""Where the supervisors of a run meet, one on each host: who is there, and which of them train in the next attempt.

It is a folder beside the checkpoints, which all hosts share in any case: without that storage no host could go on, and
unlike process 0 it outlives each of them. Every supervisor counts beats in a file of its own. A decision is a folder
that gets its name only once, so that there is one for each attempt, whoever believes to be the first that is left. No
clocks are compared: a supervisor is present while others see its beats change.
"""

import contextlib
import errno
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..base.atomic_write import write_atomically
from ..base.encoding import encode_json
from ..base.processes import Clock
from ..base.untrusted import read_struct
from ..base.user_error import UserError
from ..spec.attempt import LostProcess
from ..wire.ending import Ending
from .boundary import words

BEAT_SECONDS = 1.0
LOST_SECONDS = 10.0
"""A supervisor whose beats do not change for so long is lost, and its host with it."""
DECISION = "decision.json"
HOST_FILE = re.compile(r"host-\d+\.json")
MAX_FILE_BYTES = 1024 * 1024
"""Bytes of a file in the folder that are read at most."""
T = TypeVar("T")


class Heartbeat(Struct, frozen=True, kw_only=True):
    """The state of one supervisor, which it writes every second."""

    rank: int
    """Its `--process-id`."""
    token: str
    host: str
    address: str
    beat: int = 0
    ready_for: int = 0
    """The attempt that it waits for, or runs an engine in."""
    ending: Ending | None = None
    """How its engine ended in the attempt before that one; null if it did not take part."""
    makes_room: int = 0
    """The last attempt whose engines it stopped to take in hosts that waited."""
    is_done: bool = False


class Decision(Struct, frozen=True, kw_only=True):
    """Who trains in an attempt."""

    number: int
    members: dict[int, str] = {}
    """Tokens by rank. The first is process 0 of the attempt."""
    coordinator: str = ""
    """HOST:PORT, which that process serves."""
    spare: list[int] = []
    """Ranks that wait because no preset fits with them."""
    left_out: list[int] = []
    """Ranks whose process kept ending at once, or whose devices were wrong."""
    lost: LostProcess | None = None
    """The end of the attempt before; null if hosts were taken in."""
    problem: str = ""
    """Why there is no attempt: the run is given up. Empty if there is one."""


class Rendezvous:
    """Reads the folder, and beats in a thread of its own until this process ends."""

    def __init__(self, folder: Path, own: Heartbeat, note: Callable[[str, str], None]) -> None:
        """`note` is called with what a problem is about, and the problem or an empty text; by any thread. Raises
        UserError if the folder cannot be written, or another supervisor has the same rank."""
        self._folder, self._note = folder, note
        self._lock = threading.Lock()
        self.own = own
        self._seen: dict[int, tuple[Heartbeat, float]] = {}
        """The last heartbeat of each rank, and for how many seconds its beat has not changed; infinite if it never did
        since this process began."""
        self._rival: Heartbeat | None = None
        self._clock, self._newest = Clock(LOST_SECONDS / 2), 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._before = self._read(self._host(own.rank), Heartbeat)
            if self._before:
                time.sleep(2.5 * BEAT_SECONDS)
            self._write()
        except OSError as error:
            raise UserError(
                f"{folder}: supervisors cannot meet there: {error.strerror}: share it with all hosts"
            ) from error
        self.refuse_rival()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def update(self, **changes: object) -> None:
        """Changes the heartbeat of this supervisor, and tells the others at once."""
        with self._lock:
            self.own = msgspec.structs.replace(self.own, **changes)
        self._beat_once()

    def present(self) -> dict[int, Heartbeat]:
        """Returns the supervisors whose beats change, by rank. Raises OSError if the folder cannot be read."""
        read, found = self._others(), {self.own.rank: self.own}
        passed = self._clock.passed()  # not while the folder could not be read: then nobody was silent
        for rank in read.keys() | self._seen.keys():
            last, silent = self._seen.get(rank, (read.get(rank), math.inf))
            other = read.get(rank) or last
            assert other
            silent = silent + passed if last and (other.token, other.beat) == (last.token, last.beat) else 0.0
            self._seen[rank] = other, silent
            if silent < LOST_SECONDS:
                found[rank] = other
        return dict(sorted(found.items()))

    def newest(self) -> int:
        """Returns the number of the newest decision; the newest known if the folder cannot be read."""
        with contextlib.suppress(OSError):
            numbers = [path.name.partition("-")[2] for path in self._folder.glob("attempt-*")]
            self._newest = max(self._newest, *(int(number) for number in numbers if number.isdecimal()), 0)
        return self._newest

    def decision(self, number: int) -> Decision | None:
        return self._read(self._attempt(number) / DECISION, Decision)

    def decide(self, decision: Decision) -> None:
        """Writes a decision unless there is one for its attempt. Raises OSError."""
        new = self._folder / f"{self.own.token}.new"
        new.mkdir(exist_ok=True)
        write_atomically(new / DECISION, encode_json(decision))
        try:
            new.rename(self._attempt(decision.number))  # atomic, on NFS too: fails if there is one, which is not empty
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) and not self.decision(decision.number):
                raise

    def refuse_rival(self) -> None:
        """Raises UserError if another supervisor of this rank was seen to beat, which began earlier."""
        if self._rival:
            raise UserError(
                f"--process-id {self.own.rank}: the supervisor of {self._rival.host} has this number already: end it, "
                "or give each host its own"
            )

    def _others(self) -> dict[int, Heartbeat]:
        names = sorted(name for name in os.listdir(self._folder) if HOST_FILE.fullmatch(name))  # noqa: PTH208 # raises
        found = (self._read(self._folder / name, Heartbeat) for name in names)
        return {other.rank: other for other in found if other and other.rank != self.own.rank}

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._beat_once()

    def _beat_once(self) -> None:
        """Writes the heartbeat; says once that the storage fails, until it works again."""
        try:
            self._write()
            self._note("beat", "")
        except OSError as error:
            self._note("beat", f"{words(error)}: other hosts do not see this one")

    def _write(self) -> None:
        """Writes the heartbeat, unless a supervisor of the same rank has beaten more often. Raises OSError."""
        with self._lock:
            found = self._read(self._host(self.own.rank), Heartbeat)
            is_other = found is not None and found != self._before and found.token != self.own.token
            if found and is_other and (found.beat, found.token) > (self.own.beat, self.own.token):
                self._rival = found
            if self._rival:
                return
            self.own = msgspec.structs.replace(self.own, beat=self.own.beat + 1)
            write_atomically(self._host(self.own.rank), encode_json(self.own))

    def _host(self, rank: int) -> Path:
        return self._folder / f"host-{rank}.json"

    def _attempt(self, number: int) -> Path:
        return self._folder / f"attempt-{number}"

    def _read(self, path: Path, kind: type[T]) -> T | None:
        """Returns what a file holds; None if it is not there, half written, or cannot be read, which is reported."""
        problem = ""
        try:
            return read_struct(path, kind, MAX_FILE_BYTES)
        except UserError as error:
            match error.__cause__:
                case OSError(errno=errno.ENOENT | errno.ESTALE):  # of a file that was just replaced, on NFS
                    pass
                case OSError():
                    problem = f"{error}: ignored until it can be read"
                case _:
                    problem = f"{path}: not written by a supervisor: remove it"
        finally:
            self._note(str(path), problem)
        return None
