"""Flips bits of a checkpoint, deletes, empties and cuts its files: nothing wrong is loaded, everything is named."""

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
from shardtui.engine.checkpoint.directory import Place, check_digests, load_arrays, state_names
from shardtui.engine.checkpoint.manifest import FILE_NAME, Manifest
from shardtui.engine.distributed.outcomes import Damaged
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.digest import digests

from ..conftest import SETTINGS, SHARDTUI
from .row import Row

FLIPS = 20
UNCHECKED = 4
"""Flips for each time in the array files that are loaded without the check of files, by digest alone."""
STEP = 6


class Subject:
    """A real run's newest checkpoint, with what is in it."""

    def __init__(self) -> None:
        command = [*SHARDTUI, "train", "--run=damage", f"--steps={STEP}", "--checkpoint-every=2", *SETTINGS]
        subprocess.run(command, check=True, capture_output=True)
        self.folder = Path(os.environ["XDG_STATE_HOME"], "shardtui/runs/damage/checkpoints")
        self.place = Place(epath.Path(self.folder))
        self.manifest: Manifest = self.place.checked(STEP)
        self.files = sorted(path for path in (self.folder / str(STEP)).rglob("*") if path.is_file())
        self.task = Task(self.manifest.config, "cpu")
        self.expected = self.load()

    def load(self) -> list[np.ndarray]:
        """The arrays, with no check of files before. Raises whatever Orbax raises, or Damaged."""
        sharding = SingleDeviceSharding(jax.devices()[0])
        abstract: TrainState = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), self.task.abstract_state
        )
        state = load_arrays(self.place.path(STEP), abstract)
        check_digests(state, state_names(self.task), self.manifest, jax.jit(digests))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]

    def names(self, file: Path) -> bool:
        """The check of files says that this one is damaged."""
        try:
            self.place.checked(STEP)
        except Damaged as error:
            return any(problem.startswith((file.name, f"{file.parent.name}/{file.name}")) for problem in error.problems)
        return False


def flipped(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def run(times: int) -> list[Row]:
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # Orbax leaves errors of damaged files to its tasks
    subject, chance = Subject(), random.Random(0)
    return [
        *_flips(subject, chance, FLIPS * times),
        _flips_unchecked(subject, chance, UNCHECKED * times),
        *_whole_files(subject),
        *_resumes(subject, chance),
    ]


def _flips(subject: Subject, chance: random.Random, times: int) -> list[Row]:
    """Spread over all files, so that the small ones are hit as often as the large."""
    files = [file for file in subject.files if file.stat().st_size]
    named = sum(_is_named(subject, files[n % len(files)], chance) for n in range(times))
    return [Row("one bit flipped in a checkpoint", times, named, f"over all {len(files)} files, each named")]


def _is_named(subject: Subject, file: Path, chance: random.Random) -> bool:
    return _is_named_after(subject, file, lambda data: flipped(data, chance))


class changed:
    """The file with other bytes, or without any file, for a while."""

    def __init__(self, file: Path, data: bytes | None) -> None:
        self.file, self.data = file, data

    def __enter__(self) -> None:
        self.before = self.file.read_bytes()
        self.file.unlink() if self.data is None else self.file.write_bytes(self.data)

    def __exit__(self, *_: object) -> None:
        self.file.write_bytes(self.before)


def _flips_unchecked(subject: Subject, chance: random.Random, times: int) -> Row:
    """The second line of defence: had nobody looked at the files, the arrays' digests would tell."""
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
    """`verify` and `train --resume` as a user has them, with one file damaged each time."""
    kinds = ("arrays/**/d/*", FILE_NAME)
    verified = resumed = 0
    for kind in kinds:
        file = next((subject.folder / str(STEP)).glob(kind))
        file.write_bytes(flipped(file.read_bytes(), chance))
        report = _shardtui("verify", "damage", "--json")
        found = {info["step"]: info["problems"] for info in json.loads(report.stdout)["checkpoints"]}
        verified += report.returncode == 1 and [step for step in found if found[step]] == [STEP]
        result = _shardtui("train", "--resume=damage", f"--steps={STEP}", "--json")
        resumed += _went_on(result, subject.folder)
    return [
        Row("`verify` of a run with a damaged checkpoint", len(kinds), verified, "exit 1, named"),
        Row("`train --resume` of the same", len(kinds), resumed, "set aside, went on from the one before"),
    ]


def _went_on(result: "subprocess.CompletedProcess[str]", folder: Path) -> bool:
    events: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    damaged = [event for event in events if event["type"] == "CheckpointDamaged"]
    restored = [event["step"] for event in events if event["type"] == "Restored"]
    aside = [(folder / event["set_aside"]).is_dir() for event in damaged]
    return result.returncode == 0 and aside == [True] and restored == [STEP - 2]


def _shardtui(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SHARDTUI, *arguments], capture_output=True, text=True, check=False)
