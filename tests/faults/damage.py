"""Flips bits of a checkpoint and deletes, empties and truncates its files: every damage is found and named."""

import errno
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import numpy as np
from etils import epath
from jax.sharding import SingleDeviceSharding
from shardtui.engine.checkpoint.arrays import load_arrays
from shardtui.engine.checkpoint.directory import CheckpointDirectory, check_digests, state_names
from shardtui.engine.checkpoint.manifest import FILE_NAME
from shardtui.engine.distributed.outcomes import Damaged
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.digest import digests
from shardtui.engine.wire import run_directory

from ..conftest import SETTINGS
from .launched import Finished, failing_calls, printed, shardtui
from .row import Row, tried

FLIPS = 20
UNCHECKED_FLIPS = 4
"""Flips per round in array files that are loaded without the check of files, by the arrays' digests alone."""
STEP = 6
"""Step of the damaged checkpoint."""
WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda data: None,
    "emptied": lambda data: b"",
    "cut to half": lambda data: data[: len(data) // 2],
    "grown by a byte": lambda data: data + b"\0",
}
"""What happens to whole files."""


class Subject:
    """The newest checkpoint of a real run, and its arrays."""

    def __init__(self) -> None:
        trained = shardtui("train", "--run=damage", f"--steps={STEP}", "--checkpoint-every=2", *SETTINGS)
        assert trained.returncode == 0, trained.stderr
        self.folder = run_directory.find("damage").path / "checkpoints"
        self.place = CheckpointDirectory(epath.Path(self.folder))
        self.manifest = self.place.checked(STEP)
        self.files = sorted(path for path in (self.folder / str(STEP)).rglob("*") if path.is_file())
        self.task = Task(self.manifest.config, "cpu")
        self.expected = self.load()

    def load(self) -> list[np.ndarray]:
        """Returns the arrays without checking the files first. Raises whatever Orbax raises, or Damaged."""
        sharding = SingleDeviceSharding(jax.devices()[0])
        abstract: TrainState = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), self.task.abstract_state
        )
        state = load_arrays(self.place.path(STEP), abstract)
        check_digests(state, state_names(self.task), self.manifest, jax.jit(digests))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]

    def loaded(self) -> str:
        """Returns what loading damaged arrays has come to."""
        try:
            found = self.load()
        except Damaged:
            return "digest differs"
        except Exception:
            return "refused by Orbax"
        same = all(a.tobytes() == b.tobytes() for a, b in zip(found, self.expected, strict=True))
        return "all bits equal" if same else "WRONG"

    def names(self, file: Path, data: bytes | None) -> bool:
        """Returns whether the check of files reports this one as damaged where it has other bytes."""
        with _changed(file, data):
            try:
                self.place.checked(STEP)
            except Damaged as error:
                said = (file.name, f"{file.parent.name}/{file.name}")
                return any(problem.startswith(said) for problem in error.problems)
        return False


@contextmanager
def _changed(file: Path, data: bytes | None) -> Iterator[None]:
    """In which a file has other bytes, or is deleted if `data` is None."""
    before = file.read_bytes()
    file.unlink() if data is None else file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(before)


def flipped(file: Path, chance: random.Random) -> bytes:
    """Returns the file's bytes with one random bit flipped."""
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def run(times: int) -> Iterator[Row]:
    """Flips `times` as many bits as the short form."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # Orbax leaves errors of damaged files to its tasks
    subject, chance, flips = Subject(), random.Random(0), FLIPS * times
    files = [file for file in subject.files if file.stat().st_size]  # in turn, small ones are hit as often as large
    named = sum(subject.names(file, flipped(file, chance)) for file in (files[n % len(files)] for n in range(flips)))
    yield Row("one bit flipped in a checkpoint", flips, named, f"over all {len(files)} files, each named")
    yield _flips_unchecked(subject, chance, UNCHECKED_FLIPS * times)
    for way, change in WAYS.items():
        changes = [(file, change(data)) for file in subject.files if change(data := file.read_bytes()) != data]
        found = sum(subject.names(*each) for each in changes)
        yield Row(f"each file of a checkpoint {way}", len(changes), found, "each named")
    yield tried("EACCES: the arrays' files, after their check", 1, partial(_unreadable, subject))
    yield from _resumes(subject, chance)


def _flips_unchecked(subject: Subject, chance: random.Random, times: int) -> Row:
    """Flips bits without the check of files: the arrays' digests are the second line of defense."""
    arrays = [file for file in subject.files if file.parent.name == "d"]
    outcome = Counter[str]()
    for n in range(times):
        file = arrays[n % len(arrays)]
        with _changed(file, flipped(file, chance)):
            outcome[subject.loaded()] += 1
    kinds = ("refused by Orbax", "digest differs", "all bits equal", "WRONG")
    note = ", ".join(f"{outcome[kind]} {kind}" for kind in kinds if outcome[kind])
    return Row("one bit flipped, files not checked", times, times - outcome["WRONG"], note)


def _unreadable(subject: Subject) -> str:
    """Resumes where Orbax cannot read what was checked. Of other files tests/checkpoint makes reads fail."""
    arrays = subject.folder / str(STEP) / "arrays"
    checks = 2 * sum(path.is_file() for path in arrays.rglob("*"))
    fault = {"FAULT_UNDER": str(arrays), "FAULT_AFTER": str(checks), "FAULT_ERRNO": str(errno.EACCES)}
    before = sorted(path.name for path in subject.folder.iterdir())
    result = shardtui("train", "--resume=damage", f"--steps={STEP + 1}", **failing_calls(), **fault)
    assert result.returncode == 1 and "start a new run" not in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and "cannot be " in result.stderr, result.stderr
    assert sorted(path.name for path in subject.folder.iterdir()) == before
    assert shardtui("verify", "damage").returncode == 0, "a checkpoint is not good any more"
    return "exit 1, nothing renamed"


def _resumes(subject: Subject, chance: random.Random) -> Iterator[Row]:
    """Runs `verify` and `train --resume`, each time with one file damaged."""
    kinds = {"arrays/**/d/*": "its content has changed since it was written", FILE_NAME: ""}
    verified = resumed = 0
    for kind, why in kinds.items():
        file = next((subject.folder / str(STEP)).glob(kind))
        file.write_bytes(flipped(file, chance))
        report = shardtui("verify", "damage", "--json")
        found = {info["step"]: info["problems"] for info in json.loads(report.stdout)["checkpoints"]}
        verified += report.returncode == 1 and [step for step in found if found[step]] == [STEP]
        result = shardtui("train", "--resume=damage", f"--steps={STEP}", "--json")
        resumed += why in result.stderr and _has_resumed(result, subject.folder)
    yield Row("`verify` of a run with a damaged checkpoint", len(kinds), verified, "exit 1, named")
    yield Row("`train --resume` of the same", len(kinds), resumed, "set aside, went on from the one before")


def _has_resumed(result: Finished, folder: Path) -> bool:
    """Whether it went on from the checkpoint before the damaged one, and said so."""
    restored = [event["step"] for event in printed(result, "Restored")]
    aside = [event["set_aside"] for event in printed(result, "CheckpointDamaged")]
    is_said = [f"checkpoint of step {STEP} is damaged, set aside as {name}" in result.stderr for name in aside]
    is_kept = [(folder / name).is_dir() for name in aside]
    return (result.returncode, is_said, is_kept, restored) == (0, [True], [True], [STEP - 2])
