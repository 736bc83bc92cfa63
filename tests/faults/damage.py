"""Flips bits of a checkpoint and deletes, empties and truncates its files: every damage is found and named."""

import json
import logging
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import SingleDeviceSharding
from shardtui.engine.checkpoint.arrays import load_arrays
from shardtui.engine.checkpoint.directory import CheckpointDirectory, check_digests, state_names
from shardtui.engine.checkpoint.manifest import FILE_NAME, Manifest
from shardtui.engine.distributed.outcomes import Damaged
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.digest import digests

from ..conftest import SETTINGS, SHARDTUI
from .row import Row

FLIPS = 20
UNCHECKED_FLIPS = 4
"""Flips per round in array files that are loaded without the check of files, by the arrays' digests alone."""
STEP = 6
"""Step of the damaged checkpoint."""


class Subject:
    """The newest checkpoint of a real run, and its arrays."""

    def __init__(self) -> None:
        command = [*SHARDTUI, "train", "--run=damage", f"--steps={STEP}", "--checkpoint-every=2", *SETTINGS]
        subprocess.run(command, check=True, capture_output=True)
        self.folder = Path(os.environ["XDG_STATE_HOME"], "shardtui/runs/damage/checkpoints")
        self.place = CheckpointDirectory(epath.Path(self.folder))
        self.manifest: Manifest = self.place.checked(STEP)
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

    def names(self, file: Path) -> bool:
        """Returns whether the check of files reports this one as damaged."""
        try:
            self.place.checked(STEP)
        except Damaged as error:
            return any(problem.startswith((file.name, f"{file.parent.name}/{file.name}")) for problem in error.problems)
        return False


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Returns the bytes with one random bit flipped."""
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def run(times: int) -> list[Row]:
    """Flips `times` as many bits as the short form."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # Orbax leaves errors of damaged files to its tasks
    subject, chance = Subject(), random.Random(0)
    return [
        *_flips(subject, chance, FLIPS * times),
        _flips_unchecked(subject, chance, UNCHECKED_FLIPS * times),
        *_whole_files(subject),
        *_resumes(subject, chance),
    ]


def _flips(subject: Subject, chance: random.Random, times: int) -> list[Row]:
    """Flips bits in all files in turn, so that small files are hit as often as large ones."""
    files = [file for file in subject.files if file.stat().st_size]
    named = sum(_is_named(subject, files[n % len(files)], chance) for n in range(times))
    return [Row("one bit flipped in a checkpoint", times, named, f"over all {len(files)} files, each named")]


def _is_named(subject: Subject, file: Path, chance: random.Random) -> bool:
    return _is_named_after(subject, file, lambda data: flipped(data, chance))


class changed:
    """A context in which the file has other bytes, or is deleted if `data` is None."""

    def __init__(self, file: Path, data: bytes | None) -> None:
        self.file, self.data = file, data

    def __enter__(self) -> None:
        self.before = self.file.read_bytes()
        self.file.unlink() if self.data is None else self.file.write_bytes(self.data)

    def __exit__(self, *_: object) -> None:
        self.file.write_bytes(self.before)


def _flips_unchecked(subject: Subject, chance: random.Random, times: int) -> Row:
    """Flips bits without the check of files: the arrays' digests are the second line of defense."""
    arrays = [file for file in subject.files if file.parent.name == "d"]
    outcome = {"refused by Orbax": 0, "digest differs": 0, "all bits equal": 0, "WRONG": 0}
    for n in range(times):
        file = arrays[n % len(arrays)]
        with changed(file, flipped(file.read_bytes(), chance)):
            outcome[_loaded(subject)] += 1
    note = ", ".join(f"{count} {what}" for what, count in outcome.items() if count)
    return Row("one bit flipped, files not checked", times, times - outcome["WRONG"], note)


def _loaded(subject: Subject) -> str:
    try:
        found = subject.load()
    except Damaged:
        return "digest differs"
    except Exception:
        return "refused by Orbax"
    same = all(a.tobytes() == b.tobytes() for a, b in zip(found, subject.expected, strict=True))
    return "all bits equal" if same else "WRONG"


def _whole_files(subject: Subject) -> list[Row]:
    ways: dict[str, Callable[[bytes], bytes | None]] = {
        "deleted": lambda data: None,
        "emptied": lambda data: b"",
        "cut to half": lambda data: data[: len(data) // 2],
        "grown by a byte": lambda data: data + b"\0",
    }
    rows: list[Row] = []
    for way, change in ways.items():
        named = [
            _is_named_after(subject, file, change)
            for file in subject.files
            if change(file.read_bytes()) != file.read_bytes()
        ]
        rows.append(Row(f"each file of a checkpoint {way}", len(named), sum(named), "each named"))
    return rows


def _is_named_after(subject: Subject, file: Path, change: Callable[[bytes], bytes | None]) -> bool:
    with changed(file, change(file.read_bytes())):
        return subject.names(file)


def _resumes(subject: Subject, chance: random.Random) -> list[Row]:
    """Runs `verify` and `train --resume`, each time with one file damaged."""
    kinds = ("arrays/**/d/*", FILE_NAME)
    verified = resumed = 0
    for kind in kinds:
        file = next((subject.folder / str(STEP)).glob(kind))
        file.write_bytes(flipped(file.read_bytes(), chance))
        report = _shardtui("verify", "damage", "--json")
        found = {info["step"]: info["problems"] for info in json.loads(report.stdout)["checkpoints"]}
        verified += report.returncode == 1 and [step for step in found if found[step]] == [STEP]
        result = _shardtui("train", "--resume=damage", f"--steps={STEP}", "--json")
        resumed += _has_resumed(result, subject.folder)
    return [
        Row("`verify` of a run with a damaged checkpoint", len(kinds), verified, "exit 1, named"),
        Row("`train --resume` of the same", len(kinds), resumed, "set aside, went on from the one before"),
    ]


def _has_resumed(result: "subprocess.CompletedProcess[str]", folder: Path) -> bool:
    events: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    damaged = [event for event in events if event["type"] == "CheckpointDamaged"]
    restored = [event["step"] for event in events if event["type"] == "Restored"]
    aside = [(folder / event["set_aside"]).is_dir() for event in damaged]
    return result.returncode == 0 and aside == [True] and restored == [STEP - 2]


def _shardtui(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SHARDTUI, *arguments], capture_output=True, text=True, check=False)
