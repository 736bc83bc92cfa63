"""One checkpoint: the directory `STEP/` with `arrays/` as Orbax writes it, and a manifest.

It is written under another name, and renaming it is what commits it. So what stands under its own name and is not as
its manifest says was damaged afterwards: it is set aside by renaming, never deleted.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..distributed.outcomes import Damaged
from ..models.task import Task, TrainState
from ..program.digest import digests, joined, linear_sums
from ..spec.config import RunConfig
from ..wire.descriptions import CheckedInfo, Verification
from .leak import stop_leaks
from .manifest import FILE_NAME, Manifest, check_files, read_manifest
from .stored import stored_arrays, stored_names

STEP = re.compile(r"0|[1-9][0-9]{0,11}")
SAVING, DELETING = "saving-", "deleting-"
DAMAGED, ROLLED_BACK = "damaged", "rolled-back"

Digester = Callable[[Any], jax.Array]
"""A `digests` that is compiled, or is when it is called."""


@dataclass(frozen=True)
class Place:
    """The directory of a run's checkpoints: on this machine, or wherever `epath` reaches."""

    root: epath.Path
    run: Path | None = None
    """The run's directory, where it is within that: once that one is gone, it is not made anew."""

    def prepare(self) -> None:
        """Makes it, and clears away what an engine that was killed left unfinished."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.clear()

    def identity(self) -> tuple[int, int] | None:
        """What tells the run's directory from another one at its path; None where it is gone, or does not matter."""
        try:
            status = self.run.stat() if self.run else None
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if status else None

    def clear(self) -> None:
        """Deletes what is unfinished. For times when nothing is being saved."""
        for path in self.root.iterdir():
            if path.name.startswith((SAVING, DELETING)):
                path.rmtree()

    def path(self, step: int) -> epath.Path:
        return self.root / str(step)

    def unfinished(self, step: int) -> epath.Path:
        return self.root / f"{SAVING}{step}"

    @property
    def presets(self) -> epath.Path:
        """Those that were made in a run of several processes."""
        return self.root / "presets"

    def steps(self) -> list[int]:
        """Of the committed ones, oldest first."""
        if not self.root.exists():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if STEP.fullmatch(path.name))

    def aside(self) -> list[str]:
        """Names of those that were set aside."""
        names = [path.name for path in self.root.iterdir()] if self.root.exists() else []
        return sorted(name for name in names if STEP.fullmatch(name.partition(".")[0]) and "." in name)

    def set_aside(self, step: int, why: str) -> str:
        """Renames it to `STEP.why`, and returns that name."""
        names = itertools.chain([f"{step}.{why}"], (f"{step}.{why}-{n}" for n in itertools.count(2)))
        name = next(name for name in names if not (self.root / name).exists())
        self.path(step).rename(self.root / name)
        return name

    def delete(self, step: int) -> None:
        """Under another name first: a kill in between leaves nothing that looks damaged."""
        self.path(step).rename(self.root / f"{DELETING}{step}").rmtree()

    def checked(self, step: int) -> Manifest:
        """Its manifest, after every file was compared with it. Raises Damaged."""
        manifest = read_manifest(self.path(step))
        if manifest.step != step:
            raise Damaged(f"it says that it is of step {manifest.step:,}")
        check_files(self.path(step), manifest)
        return manifest


def save_arrays(checkpoint: epath.Path, state: TrainState) -> Any:
    """Copies the state to the host and writes it in the background; `.result()` waits for that and may raise."""
    from orbax.checkpoint import v1 as ocp  # half a second to import

    stop_leaks()
    context = ocp.Context()
    if jax.process_count() == 1:  # nothing is won by splitting replicas, and each of their slices is compiled
        context.array.saving.use_replica_parallel = False
    with context:
        return ocp.save_async(checkpoint / "arrays", _fields(state))


def load_arrays(checkpoint: epath.Path, abstract: TrainState) -> TrainState:
    """The state under the shardings of `abstract`, whatever it was saved under."""
    from orbax.checkpoint import v1 as ocp

    return abstract._replace(**ocp.load(checkpoint / "arrays", _fields(abstract)))


def _fields(state: TrainState) -> dict[str, Any]:
    """By name, without those that hold nothing."""
    return {name: tree for name, tree in state._asdict().items() if jax.tree.leaves(tree)}


def state_names(task: Task) -> list[str]:
    return [array.names[0] for array in jax.tree.leaves(task.state_arrays)]


def array_types(task: Task) -> dict[str, str]:
    """By name, `float32 [128, 512]`."""
    return {array.names[0]: _type(array) for array in jax.tree.leaves(task.state_arrays)}


def _type(array: Any) -> str:
    return f"{array.dtype} [{', '.join(map(str, array.shape))}]"


def check_digests(arrays: Any, names: Sequence[str], manifest: Manifest, digester: Digester) -> None:
    """Raises Damaged with the name of every array that is not the one that was saved."""
    found = np.asarray(jax.jit(linear_sums)(arrays)) if manifest.digest == "sum32" else joined(digester(arrays))
    digits = 2 * found.itemsize
    problems = [
        f"{name}: digest {digest:0{digits}x}, {manifest.digests.get(name, 0):0{digits}x} was saved"
        for name, digest in zip(names, found.tolist(), strict=True)
        if manifest.digests.get(name) != digest
    ]
    if problems:
        raise Damaged(*problems)


def verify(place: Place, config: RunConfig) -> Verification:
    """Checks every file and every array of every checkpoint of a run of `config`; changes nothing, and runs no code of
    its model. Raises Invalid where there is something else in the place of their directory."""
    try:
        steps, aside = place.steps(), place.aside()
    except OSError as error:
        raise Invalid(f"{place.root}: cannot be read: {error.strerror or error}") from error
    return Verification(
        directory=str(place.root), checkpoints=[_verified(place, step, config) for step in steps], set_aside=aside
    )


def _verified(place: Place, step: int, config: RunConfig) -> CheckedInfo:
    manifest = None
    try:
        manifest = read_manifest(place.path(step))
        place.checked(step)
        if models := manifest.other_model(config):
            raise Damaged(f"{FILE_NAME}: the model is {models[1]}, {models[0]} in run.json")
        _check_arrays(place.path(step), manifest)
    except Damaged as error:
        described = manifest.describe() if manifest else None
        return CheckedInfo(step=step, checkpoint=described, problems=list(error.problems))
    return CheckedInfo(step=step, checkpoint=manifest.describe(), problems=[])


def _check_arrays(checkpoint: epath.Path, manifest: Manifest) -> None:
    """On one device of this machine, whatever it was saved on. Raises Damaged."""
    try:
        stored = stored_arrays(checkpoint)
    except Exception as error:
        raise Damaged(f"arrays: {problems_in(error)[0]}") from error
    found = stored_names([path for path, _ in stored], manifest.digests)
    names = [name for name in found if name]
    problems = [f"{name}: not among the arrays" for name in manifest.digests if name not in names]
    problems += [f"{name}: more than one array is called so" for name, count in Counter(names).items() if count > 1]
    for (path, array), name in zip(stored, found, strict=True):
        written = manifest.arrays.get(name) if name else None
        if name is None:
            problems.append(f"arrays{jax.tree_util.keystr(path)}: {FILE_NAME} does not name it")
        elif written not in (None, _type(array)) or (manifest.arrays and written is None):
            problems.append(f"{name}: {_type(array)}, {written} was saved")
    if problems:
        raise Damaged(*problems)
    check_digests([array for _, array in stored], names, manifest, jax.jit(digests))
