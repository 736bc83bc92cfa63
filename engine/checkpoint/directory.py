"""The checkpoints of a run: each is a directory `STEP/` with Orbax's `arrays/` and a manifest.

A checkpoint is written under a temporary name and committed by renaming it. So a committed one that differs from its
manifest was damaged afterwards: it is set aside by renaming, never deleted.
"""

import contextlib
import errno
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from etils import epath

from ..base.advice import problems_in
from ..base.atomic_write import sync_directory
from ..base.user_error import UserError
from ..distributed.outcomes import Damaged
from ..models.task import Task
from ..program.digest import digests, joined
from ..spec.config import RunConfig
from ..wire.checkpoints import CheckedInfo, CheckpointInfo, Verification
from ..wire.run_directory import RunDirectory
from .arrays import stored_arrays, stored_names
from .manifest import FILE_NAME, Manifest, check_files, is_local, read_manifest

STEP = re.compile(r"0|[1-9][0-9]{0,11}")
SAVING, DELETING = "saving-", "deleting-"
DELETE_TRIES, DELETE_PAUSE = 20, 0.05
"""Tries to delete a directory in which Orbax still writes, and seconds between them."""
DAMAGED, ROLLED_BACK = "damaged", "rolled-back"
Digester = Callable[[Any], jax.Array]
"""`digest.digests`, compiled before or at the first call."""


@dataclass(frozen=True)
class CheckpointDirectory:
    """The directory of a run's checkpoints: on this machine, or on any filesystem that `epath` supports."""

    root: epath.Path
    run: Path | None = None
    """The run's directory if it contains `root`, else None. If it was removed, nothing is saved."""

    def prepare(self) -> None:
        """Creates the directory, and deletes unfinished checkpoints of a killed engine."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.clear()

    def identity(self) -> tuple[int, int] | None:
        """Returns device and inode of the run's directory; None if it was removed, or if `run` is None."""
        try:
            status = self.run.stat() if self.run else None
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if status else None

    def clear(self) -> None:
        """Deletes unfinished checkpoints, if nothing is being saved. After a failed save, Orbax may still write for a
        moment, so several tries may be needed."""
        for path in self.root.iterdir():
            if path.name.startswith((SAVING, DELETING)):
                _delete(path)

    def path(self, step: int) -> epath.Path:
        return self.root / str(step)

    def unfinished(self, step: int) -> epath.Path:
        return self.root / f"{SAVING}{step}"

    def commit(self, step: int) -> None:
        self.unfinished(step).rename(self.path(step))
        if is_local(self.root):
            sync_directory(Path(self.root))

    @property
    def presets(self) -> epath.Path:
        """Returns the directory of presets that were created in a run of several processes."""
        return self.root / "presets"

    def steps(self) -> list[int]:
        if not self.root.exists():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if STEP.fullmatch(path.name))

    def aside(self) -> list[str]:
        names = [path.name for path in self.root.iterdir()] if self.root.exists() else []
        return sorted(name for name in names if STEP.fullmatch(name.partition(".")[0]) and "." in name)

    def set_aside(self, step: int, why: str) -> str:
        """Renames a checkpoint to `STEP.why`, or `STEP.why-2`, …, and returns the new name."""
        names = itertools.chain([f"{step}.{why}"], (f"{step}.{why}-{n}" for n in itertools.count(2)))
        name = next(name for name in names if not (self.root / name).exists())
        self.path(step).rename(self.root / name)
        return name

    def delete(self, step: int) -> None:
        """Deletes a checkpoint. Renames it first, so that a kill leaves nothing that looks damaged."""
        self.path(step).rename(self.root / f"{DELETING}{step}").rmtree()

    def checked(self, step: int) -> Manifest:
        """Compares every file with the manifest, and returns the manifest. Raises Damaged."""
        manifest = read_manifest(self.path(step))
        if manifest.step != step:
            raise Damaged(f"its manifest names step {manifest.step:,}")
        check_files(self.path(step), manifest)
        return manifest


def _delete(path: epath.Path) -> None:
    for _ in range(DELETE_TRIES):
        try:
            return path.rmtree()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        time.sleep(DELETE_PAUSE)
    return path.rmtree()


def state_names(task: Task) -> list[str]:
    """Returns the names of the state's arrays, in the order of its leaves."""
    return [array.names[0] for array in jax.tree.leaves(task.state_arrays)]


def array_types(task: Task) -> dict[str, str]:
    """Returns the type of each array of the state by name, such as `float32 [128, 512]`."""
    return {array.names[0]: _type(array) for array in jax.tree.leaves(task.state_arrays)}


def _type(array: Any) -> str:
    return f"{array.dtype} [{', '.join(map(str, array.shape))}]"


def check_digests(arrays: Any, names: Sequence[str], manifest: Manifest, digester: Digester) -> None:
    """Raises Damaged with the name of every array whose digest differs from the saved one."""
    problems = [
        f"{name}: digest {digest:016x}, {manifest.digests.get(name, 0):016x} when saved"
        for name, digest in zip(names, joined(digester(arrays)).tolist(), strict=True)
        if manifest.digests.get(name) != digest
    ]
    if problems:
        raise Damaged(*problems)


def verify_run(directory: str) -> Verification:
    """Verifies the checkpoints of the run in `directory`. Uses one CPU device."""
    run = RunDirectory(Path(directory))
    config = run.config
    return verify(CheckpointDirectory(epath.Path(run.checkpoints(config))), config)


def verify(directory: CheckpointDirectory, config: RunConfig) -> Verification:
    """Checks every file and array of every checkpoint. Changes nothing, and runs no code of a user's model. Raises
    UserError if the directory cannot be read."""
    try:
        steps, aside = directory.steps(), directory.aside()
    except OSError as error:
        raise UserError(f"{directory.root}: cannot be read: {error.strerror or error}") from error
    return Verification(
        directory=str(directory.root),
        checkpoints=[_verified(directory, step, config) for step in steps],
        set_aside=aside,
    )


def _verified(directory: CheckpointDirectory, step: int, config: RunConfig) -> CheckedInfo:
    manifest = None
    try:
        manifest = read_manifest(directory.path(step))
        directory.checked(step)
        if models := manifest.other_model(config):
            raise Damaged(f"{FILE_NAME}: the model is {models[1]}, {models[0]} in run.json")
        _check_arrays(directory.path(step), manifest)
    except Damaged as error:
        described = manifest.describe() if manifest else None
        return CheckedInfo(step=step, checkpoint=described, problems=list(error.problems))
    return CheckedInfo(step=step, checkpoint=manifest.describe(), problems=[])


def _check_arrays(checkpoint: epath.Path, manifest: Manifest) -> None:
    """Loads all arrays on one device and compares them with the manifest. Raises Damaged."""
    try:
        stored = stored_arrays(checkpoint)
    except Exception as error:
        raise Damaged(f"arrays: {problems_in(error)[0]}") from error
    found = stored_names([path for path, _ in stored], manifest.digests)
    names = [name for name in found if name]
    problems = [f"{name}: missing from the arrays" for name in manifest.digests if name not in names]
    problems += [f"{name}: more than one array has this name" for name, count in Counter(names).items() if count > 1]
    for (path, array), name in zip(stored, found, strict=True):
        written = manifest.arrays.get(name) if name else None
        if name is None:
            problems.append(f"arrays{jax.tree_util.keystr(path)}: not in {FILE_NAME}")
        elif written != _type(array):
            problems.append(f"{name}: {_type(array)}, {written} when saved")
    if problems:
        raise Damaged(*problems)
    check_digests([array for _, array in stored], names, manifest, jax.jit(digests))


def kept(directory: CheckpointDirectory) -> list[CheckpointInfo]:
    """Returns all checkpoints, oldest first, except those with a damaged manifest."""
    found: list[CheckpointInfo] = []
    for step in directory.steps():
        with contextlib.suppress(Damaged):
            found.append(read_manifest(directory.path(step)).describe())
    return found


def prune(directory: CheckpointDirectory, newest: int) -> None:
    """Deletes all checkpoints except the `newest` ones and the best one."""
    found = kept(directory)
    best = min(found, key=lambda info: info.rank)
    for info in found[:-newest]:
        if info is not best:
            directory.delete(info.step)
