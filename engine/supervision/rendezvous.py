"""Where the supervisors of a run meet, one on each host: who is there, and which of them train in the next attempt.

It is a folder beside the checkpoints, which all hosts share in any case: without that storage no host could go on, and
unlike process 0 it outlives each of them. Every supervisor counts beats in a file of its own. A decision is a file
that can be created only once, so that there is one for each attempt, whoever believes to be the first that is left. No
clocks are compared: a supervisor is present while others see its beats change.
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..base.atomic_write import write_atomically
from ..base.user_error import UserError
from ..spec.attempt import LostProcess
from ..wire.ending import Ending

BEAT_SECONDS = 1.0
LOST_SECONDS = 10.0
"""A supervisor whose beats do not change for so long is lost, and its host with it."""
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

    def __init__(self, folder: Path, own: Heartbeat) -> None:
        """Raises UserError if the folder cannot be written, or another supervisor has the same rank."""
        self._folder = folder
        self._lock = threading.Lock()
        self.own = own
        self._seen: dict[int, tuple[str, int, float]] = {}
        """Token and beat of each rank, and when they changed; 0 if they never did since this process began."""
        self._is_failing = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._refuse_rival()
            self._write()
        except OSError as error:
            raise UserError(
                f"{folder}: supervisors cannot meet there: {error.strerror}: share it with all hosts"
            ) from error
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def update(self, **changes: object) -> None:
        """Changes the heartbeat of this supervisor, and tells the others at once."""
        with self._lock:
            self.own = msgspec.structs.replace(self.own, **changes)
        self._beat_once()

    def present(self) -> dict[int, Heartbeat]:
        """Returns the supervisors whose beats change, by rank."""
        now, found = time.monotonic(), {self.own.rank: self.own}
        for other in self._others():
            token, beat, changed = self._seen.get(other.rank, (other.token, other.beat, 0.0))
            if (token, beat) != (other.token, other.beat):
                changed = now
            self._seen[other.rank] = other.token, other.beat, changed
            if changed and now - changed < LOST_SECONDS:
                found[other.rank] = other
        return dict(sorted(found.items()))

    def newest(self) -> int:
        return max((int(path.stem.partition("-")[2]) for path in self._folder.glob("attempt-*.json")), default=0)

    def decision(self, number: int) -> Decision | None:
        return _read(self._attempt(number), Decision)

    def decide(self, decision: Decision) -> None:
        """Writes a decision unless there is one for its attempt. Ignores a failing storage: the caller tries again."""
        new = self._folder / f"{self.own.token}.new"
        with contextlib.suppress(OSError):
            write_atomically(new, msgspec.json.encode(decision))
            with contextlib.suppress(FileExistsError):
                os.link(new, self._attempt(decision.number))  # atomic, on NFS too
            new.unlink()

    def _others(self) -> list[Heartbeat]:
        found = (_read(path, Heartbeat) for path in self._folder.glob("host-*.json"))
        return [other for other in found if other and other.rank != self.own.rank]

    def _refuse_rival(self) -> None:
        """Raises UserError if another supervisor of this rank beats."""
        before = _read(self._host(self.own.rank), Heartbeat)
        if before is None:
            return
        time.sleep(2.5 * BEAT_SECONDS)
        if (after := _read(self._host(self.own.rank), Heartbeat)) and (after.token, after.beat) != (
            before.token,
            before.beat,
        ):
            raise UserError(
                f"--process-id {self.own.rank}: the supervisor of {after.host} has this number already: end it, or "
                "give each host its own"
            )

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._beat_once()

    def _beat_once(self) -> None:
        """Writes the heartbeat; says once that the storage fails, until it works again."""
        try:
            self._write()
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                text = f"shardtui: {self._folder}: {error.strerror}: other hosts do not see this one"
                print(text, file=sys.stderr, flush=True)
            self._is_failing = True

    def _write(self) -> None:
        with self._lock:
            self.own = msgspec.structs.replace(self.own, beat=self.own.beat + 1)
            write_atomically(self._host(self.own.rank), msgspec.json.encode(self.own))

    def _host(self, rank: int) -> Path:
        return self._folder / f"host-{rank}.json"

    def _attempt(self, number: int) -> Path:
        return self._folder / f"attempt-{number}.json"


def _read(path: Path, kind: type[T]) -> T | None:
    """Returns what a file holds; None if it is not there, or half written."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None
