"""The checkpoints of a run: each is a directory `STEP/` with Orbax's `arrays/` and a manifest.

A checkpoint is written under a temporary name and committed by renaming it. So a committed one that differs from its
manifest was damaged afterwards: it is set aside by renaming, never deleted. One that cannot be read is left alone.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from etils import epath

from ..base.advice import problems_in
from ..distributed.outcomes import Damaged, Unreadable
from ..models.task import Task
from ..program.digest import digests, joined
from ..spec.config import RunConfig
from ..wire.checkpoints import CheckedInfo, CheckpointInfo, Verification
from ..wire.run_directory import RunDirectory
from .arrays import stored_arrays, stored_names
from .manifest import FILE_NAME, Manifest, check_files, read_manifest
from .reading import as_user_error, names_in

STEP = re.compile(r"0|[1-9][0-9]{0,11}")
Digester = Callable[[Any], jax.Array]
"""`digest.digests`, compiled before or at the first call."""


@dataclass(frozen=True)
class CheckpointDirectory:
    """The directory of a run's checkpoints, to be read: on this machine, or on any filesystem that `epath` supports."""

    root: epath.Path
    run: Path | None = None
    """The run's directory if it contains `root`, else None. If it was removed, nothing is saved."""

    def path(self, step: int) -> epath.Path:
        return self.root / str(step)

    def names(self) -> list[str]:
        """Raises Unreadable, which is not the same as an empty directory: a run would begin anew."""
        return names_in(self.root) or []

    def steps(self) -> list[int]:
        return sorted(int(name) for name in self.names() if STEP.fullmatch(name))

    def aside(self) -> list[str]:
        return sorted(name for name in self.names() if STEP.fullmatch(name.partition(".")[0]) and "." in name)

    def checked(self, step: int) -> Manifest:
        """Compares every file with the manifest, and returns the manifest. Raises Damaged and Unreadable."""
        manifest = read_manifest(self.path(step))
        if manifest.step != step:
            raise Damaged(f"its manifest names step {manifest.step:,}")
        check_files(self.path(step), manifest)
        return manifest


def state_names(task: Task) -> list[str]:
    return [array.names[0] for array in jax.tree.leaves(task.state_arrays)]


def array_types(task: Task) -> dict[str, str]:
    """Returns the type of each array of the state by name, such as `float32 [128, 512]`."""
    return {array.names[0]: _type(array) for array in jax.tree.leaves(task.state_arrays)}


def _type(array: Any) -> str:
    return f"{array.dtype} [{', '.join(map(str, array.shape))}]"


def is_empty(kind: str) -> bool:
    """Returns whether an array of this type has no elements: such ones are not stored."""
    return "0" in re.findall(r"\d+", kind.partition("[")[2])


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
    with as_user_error():
        steps, aside = directory.steps(), directory.aside()
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
    except (Damaged, Unreadable) as error:
        described = manifest.describe() if manifest else None
        return CheckedInfo(step=step, checkpoint=described, problems=list(error.problems))
    return CheckedInfo(step=step, checkpoint=manifest.describe(), problems=[])


def _check_arrays(checkpoint: epath.Path, manifest: Manifest) -> None:
    """Loads all arrays on one device and compares them with the manifest. Raises Damaged, and Unreadable if Orbax
    fails, although all files are as they were written."""
    try:
        stored = stored_arrays(checkpoint)
    except Exception as error:
        raise Unreadable(f"arrays: cannot be loaded from intact files: {problems_in(error)[0]}") from error
    found = stored_names([path for path, _ in stored], manifest.digests)
    names = [name for name in found if name]
    expected = [name for name in manifest.digests if not is_empty(manifest.arrays.get(name, ""))]
    problems = [f"{name}: missing from the arrays" for name in expected if name not in names]
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
    """Returns all checkpoints, oldest first, except those with a damaged manifest. Raises Unreadable."""
    found: list[CheckpointInfo] = []
    for step in directory.steps():
        with contextlib.suppress(Damaged):
            found.append(read_manifest(directory.path(step)).describe())
    return found
