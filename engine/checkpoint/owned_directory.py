"""The directory of checkpoints that this run may change: each change first checks its lease.

Unfinished checkpoints and those being deleted have the lease's token in their names. A new holder deletes those it
finds, so that a late commit of the one before finds nothing to rename.
"""

import errno
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from etils import epath

from ..base.advice import problems_in
from ..base.atomic_write import sync_directory
from ..base.user_error import UserError
from ..distributed.cluster import Cluster
from ..distributed.outcomes import Failure
from ..wire.run_directory import RunDirectory
from .directory import CheckpointDirectory, kept
from .lease import Lease
from .reading import is_local

SAVING, DELETING = "saving-", "deleting-"
DELETE_TRIES, DELETE_PAUSE = 20, 0.05
"""Tries to delete a directory in which Orbax still writes and deletes, and seconds between them."""
DAMAGED, ROLLED_BACK = "damaged", "rolled-back"


@dataclass(frozen=True)
class OwnedDirectory(CheckpointDirectory):
    """Only process 0 changes it; the others write into its unfinished checkpoints."""

    token: str = field(kw_only=True)
    lease: Lease | None = field(kw_only=True)
    """None in the other processes."""

    @classmethod
    def take(
        cls, directory: CheckpointDirectory, cluster: Cluster, refusal: type[UserError] | type[Failure]
    ) -> "OwnedDirectory":
        """Creates the directory, takes its lease, and deletes unfinished checkpoints of a killed engine. Raises
        `refusal` if another run has the lease; UserError if the directory cannot be written, or if a process does not
        see process 0's."""
        found: list[OwnedDirectory] = []
        token = cluster.broadcast(lambda: _taken(directory, refusal, found), str)
        own = found[0] if found else cls(directory.root, directory.run, token=token, lease=None)
        cluster.run_on_all(own.check_mark)
        cluster.broadcast(lambda: own.discard(0), None)
        return own

    def write_mark(self) -> None:
        """Writes a file by which other processes check that they see the same directory."""
        self.unfinished(0).mkdir()
        (self.unfinished(0) / "mark").write_text(self.token)  # an object store has no empty folders

    def check_mark(self) -> None:
        if not (self.unfinished(0) / "mark").exists():
            raise UserError(
                f"{self.root}: this host cannot see the files of process 0: give a --checkpoint-dir "
                "that all hosts share"
            )

    def check_lease(self) -> None:
        assert self.lease, "only process 0 changes the directory"
        self.lease.check()

    def identity(self) -> tuple[int, int] | None:
        """Returns device and inode of the lock in the run's directory; None if it was removed, or if `run` is None. A
        directory is there until all in it is removed, and a write that is under way makes it anew; the lock is gone.
        Raises OSError."""
        try:
            status = RunDirectory(self.run).lock.stat() if self.run else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (status.st_dev, status.st_ino) if status else None

    def clear(self) -> None:
        """Deletes unfinished checkpoints, if nothing is being saved. After a failed save, Orbax may still write for a
        moment, so several tries may be needed."""
        for path in [*self.root.iterdir()]:  # before the check: what another holder begins after it is not deleted
            if path.name.startswith((SAVING, DELETING)):
                self.check_lease()
                _delete(path)

    def unfinished(self, step: int) -> epath.Path:
        return self.root / f"{SAVING}{self.token}-{step}"

    def discard(self, step: int) -> None:
        self.check_lease()
        _delete(self.unfinished(step))

    def commit(self, step: int) -> None:
        self.check_lease()
        self.unfinished(step).rename(self.path(step))
        if is_local(self.root):
            sync_directory(Path(self.root))

    def set_aside(self, step: int, why: str) -> str:
        """Renames a checkpoint to `STEP.why`, or `STEP.why-2`, …, and returns the new name."""
        names = itertools.chain([f"{step}.{why}"], (f"{step}.{why}-{n}" for n in itertools.count(2)))
        known = self.names()
        name = next(name for name in names if name not in known)
        self.check_lease()
        self.path(step).rename(self.root / name)
        return name

    def delete(self, step: int) -> None:
        """Deletes a checkpoint. Renames it first, so that a kill leaves nothing that looks damaged."""
        self.check_lease()
        self.path(step).rename(self.root / f"{DELETING}{self.token}-{step}").rmtree()

    def prune(self, newest: int) -> None:
        """Deletes all checkpoints except the `newest` ones and the best one; none if one cannot be read. Raises
        Unreadable."""
        found = kept(self)
        best = min(found, key=lambda info: info.rank)
        for info in found[:-newest]:
            if info is not best:
                self.delete(info.step)


def _taken(
    directory: CheckpointDirectory, refusal: type[UserError] | type[Failure], found: list[OwnedDirectory]
) -> str:
    try:
        directory.root.mkdir(parents=True, exist_ok=True)
        lease = Lease(directory.root)
        lease.take(refusal)
        own = OwnedDirectory(directory.root, directory.run, token=lease.token, lease=lease)
        with suppress(OSError):  # an engine that lost its lease may still write there
            own.clear()
        own.write_mark()
    except (UserError, Failure):
        raise
    except Exception as error:  # of the file system, and of TensorStore
        raise UserError(f"{directory.root}: cannot store checkpoints there: {problems_in(error)[0]}") from error
    found.append(own)
    return own.token


def _delete(path: epath.Path) -> None:
    for _ in range(DELETE_TRIES):
        if not path.exists():
            return None
        try:
            return path.rmtree()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        time.sleep(DELETE_PAUSE)
    return path.rmtree()
