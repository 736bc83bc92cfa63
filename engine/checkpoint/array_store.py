"""The store of an item's arrays, in files or OCDBT: the type of each, and pieces of values that are missing."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import jax.numpy as jnp
import tensorstore
from etils import epath
from msgspec import Struct

from ..base.untrusted import decode, refusing
from ..base.user_error import UserError, noting
from ..program.pytree_arrays import bytes_of
from ..wire.checkpoints import Shape
from .reading import content, is_local

MAX_BYTES = 2**60
MANIFEST = "manifest.ocdbt"
PIECE = re.compile(r"(?P<array>.+?)/(?:c(?:/\d+)*|\d+(?:\.\d+)*)", re.DOTALL)
"""The key of a piece of an array, in Zarr 3 or 2."""
CACHE = {"cache_pool": {"total_bytes_limit": 2**28}}
"""Without it, OCDBT reads a node again for each key in it."""


class StoredType(Struct):
    """An array's metadata: in Zarr 2 as they are, of Zarr 3 what they share."""

    shape: Shape
    dtype: str
    chunks: Shape

    def __post_init__(self) -> None:
        """Raises ValueError if no array can have this type."""
        dtype = jnp.dtype(self.dtype)
        if dtype.hasobject or bytes_of(self.shape, dtype) > MAX_BYTES or len(self.chunks) != len(self.shape):
            raise ValueError(f"no array is {self.dtype} {self.shape} in pieces of {self.chunks}")


class _Grid(Struct):
    chunk_shape: Shape


class _ChunkGrid(Struct):
    configuration: _Grid


class _Zarr3(Struct):
    shape: Shape
    data_type: str
    chunk_grid: _ChunkGrid


class ArrayStore:
    def __init__(self, directory: epath.Path, is_zarr3: bool, is_ocdbt: bool | None) -> None:
        """`is_ocdbt`: as the item's metadata say, or None. Raises UserError if the store cannot be opened."""
        self._directory, self._is_zarr3 = directory, is_zarr3
        has_manifest = (directory / MANIFEST).exists()
        if is_ocdbt and not has_manifest:
            raise UserError(f"{directory}: incomplete or damaged: no {MANIFEST}, the index of its arrays")
        self._files: Any = {"driver": "file", "path": f"{directory}/"} if is_local(directory) else f"{directory}/"
        self._is_ocdbt = has_manifest
        if has_manifest and is_local(directory):
            _require_regular(Path(directory))
        with refusing(f"{directory}"):
            spec = {"driver": "ocdbt", "base": self._files} if has_manifest else self._files
            self._values = tensorstore.KvStore.open(spec, context=tensorstore.Context(CACHE)).result()
            self._keys = [key.decode(errors="replace") for key in self._values.list().result()]

    def read(self, names: Sequence[str], problems: list[str]) -> dict[str, StoredType]:
        """Returns the arrays' types by name; adds a problem for each that cannot be read."""
        keys = {name: f"{name}/{'zarr.json' if self._is_zarr3 else '.zarray'}" for name in names}
        is_local_file = is_local(self._directory) and not self._is_ocdbt
        reads = {} if is_local_file else {name: self._values.read(key) for name, key in keys.items()}
        found: dict[str, StoredType] = {}
        for name, key in keys.items():
            with noting(problems):
                read = self._file(key) if is_local_file else _value(reads[name], self._label(key))
                found[name] = self._type(read, key)
        return found

    def _label(self, key: str) -> str:
        return f"{self._directory}/{key}"

    def _file(self, key: str) -> bytes:
        path = PurePosixPath(key)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{self._directory}: {key}: a name that leads out of the checkpoint: it is not read")
        return content(self._directory / key)

    def _type(self, read: bytes, key: str) -> StoredType:
        if not self._is_zarr3:
            return decode(read, StoredType, self._label(key))
        found = decode(read, _Zarr3, self._label(key))
        with refusing(self._label(key)):
            return StoredType(found.shape, found.data_type, found.chunk_grid.configuration.chunk_shape)

    def damage(self, types: Mapping[str, StoredType], are_all_stored: bool) -> list[str]:
        """Returns which pieces of values are missing, by array, and which files, one line each. `are_all_stored`:
        whether pieces of zeros are stored, too."""
        try:
            with refusing(f"{self._directory}"):
                missing = self._missing_pieces(types) if are_all_stored else ()
                return [*missing, *(self._damaged_files() if self._is_ocdbt else ())]
        except UserError as error:
            return list(error.problems)

    def _missing_pieces(self, types: Mapping[str, StoredType]) -> Iterator[str]:
        counts = Counter(piece["array"] for piece in map(PIECE.fullmatch, self._keys) if piece)
        for name, found in types.items():
            sizes = zip(found.shape, found.chunks, strict=True)
            wanted = math.prod(-(-size // max(1, chunk)) for size, chunk in sizes)
            if counts[name] < wanted:
                missing = wanted - counts[name]
                yield f"{self._directory}: {name}: damaged: {missing:,} of {wanted:,} pieces of its values are missing"

    def _damaged_files(self) -> Iterator[str]:
        ends: dict[str, int] = {}
        for _, base, name, offset, length in (place.split(":") for place in self._places()):
            path = unquote(base) + unquote(name)
            ends[path] = max(ends.get(path, 0), int(offset) + int(length))
        for name, end in ends.items():
            path = self._directory / name
            size = path.stat().length if path.exists() else None
            if size is None or size < end:
                has = "missing" if size is None else f"{size:,} bytes"
                yield f"{path}: damaged: {has}, values go to byte {end:,}"

    def _places(self) -> Iterator[str]:
        """Yields the place of each value that is not in the index itself: `value:FOLDER:FILE:OFFSET:LENGTH`."""
        files = tensorstore.KvStore.open(self._files).result()
        manifest: Any = tensorstore.ocdbt.dump(files).result()
        pending: list[str] = [manifest["versions"][-1]["root"].get("location", "")]
        while pending:
            if node := pending.pop():
                entries: Any = tensorstore.ocdbt.dump(files, node).result()
                pending += (entry["location"] for entry in entries["entries"] if "location" in entry)
                yield from (entry["indirect_value"] for entry in entries["entries"] if "indirect_value" in entry)


def _value(read: Any, label: str) -> bytes:
    with refusing(label):
        found = read.result()
    if found.state == "missing":
        raise UserError(f"{label}: damaged: missing from the checkpoint")
    return found.value


def _require_regular(directory: Path) -> None:
    """Raises UserError if a file in the directory may block those that open it."""
    for path in directory.rglob("*"):
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{path}: cannot be read: not a regular file")
