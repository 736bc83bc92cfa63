"""A part of a copy: the shards that one process has copied, in files with digests as those of a checkpoint."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from etils import epath
from msgspec import Struct

from ..checkpoint.manifest import FILE_NAME, Manifest, check_files, file_digests, read_manifest, write_manifest
from ..distributed.outcomes import Damaged
from .host_memory import entries
from .shares import Region, Shard

SHARDS, INDEX = "shards", "index.json"
FILES = (FILE_NAME, INDEX, SHARDS)
"""The files of a part."""
NEW = "new-"
"""Begins the name of a part that is being written."""
NAME = re.compile(r"(\d{1,12})-(\d{1,9})-(\d{1,6})-of-(\d{1,6})")


class Part(NamedTuple):
    """What identifies a part. The parts of all processes, of one step and epoch, are a whole copy."""

    step: int
    epoch: int
    process: int
    """Index of the process that copied it, in that epoch."""
    processes: int
    """How many there were."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.step}-{self.epoch}-{self.process}-of-{self.processes}"

    @property
    def copy(self) -> tuple[int, int, int]:
        """What all parts of a copy have in common: step, epoch and number of processes."""
        return self.step, self.epoch, self.processes


class Piece(Struct, frozen=True):
    """Where a part has a shard."""

    leaf: int
    """Place of its array among the leaves of the state."""
    region: Region
    """Which elements of the array it has."""
    offset: int
    """First byte in the file."""
    size: int
    """Number of bytes."""


def named(name: str) -> Part | None:
    """Returns the part of that name; None if it is not the name of one."""
    match = NAME.fullmatch(name)
    return Part(*map(int, match.groups())) if match else None


def parts_in(folder: Path) -> list[Part]:
    """Returns the parts in a folder that were written to their end."""
    return [part for path in entries(folder) if (part := named(path.name))]


def write_part(folder: Path, part: Part, shards: Sequence[Shard], manifest: Manifest) -> None:
    """Writes a part. `manifest`: of the whole state; it gets the digests of the part's files. Raises OSError."""
    with Writing(folder, part) as new:
        pieces: list[Piece] = []
        with (new / SHARDS).open("wb") as file:
            for leaf, region, array in shards:
                pieces.append(Piece(leaf, region, file.tell(), array.nbytes))
                file.write(array.reshape(-1).view(np.uint8).data)
        (new / INDEX).write_bytes(msgspec.json.encode(pieces))
        place = epath.Path(new)
        write_manifest(msgspec.structs.replace(manifest, files=file_digests(place)), place)


class Writing:
    """The folder of a part while it is written. It gets the part's name at the end, or is deleted if that fails."""

    def __init__(self, folder: Path, part: Part) -> None:
        self._new, self._path = folder / f"{NEW}{part.name}", folder / part.name

    def __enter__(self) -> Path:
        shutil.rmtree(self._new, ignore_errors=True)
        self._new.mkdir()
        return self._new

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._new.rename(self._path)
        else:
            shutil.rmtree(self._new, ignore_errors=True)


def check_part(folder: Path, part: Part) -> None:
    """Compares the files of a part with their digests. Raises Damaged."""
    place = epath.Path(folder / part.name)
    manifest = read_manifest(place)
    if manifest.step != part.step or set(manifest.files) != {INDEX, SHARDS}:
        raise Damaged(f"{FILE_NAME}: not that of this part")
    check_files(place, manifest)
