"""Where the tensors of a directory's `*.safetensors` are, read from the headers of the files alone. No numpy here.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name to dtype, shape, and the begin and
end of its bytes), and the bytes of all tensors.
"""

import math
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..base.regular_file import open_regular
from ..base.untrusted import decode, read_struct, refusing
from ..base.user_error import UserError, noting, refuse

INDEX = "model.safetensors.index.json"
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes per element of the dtypes that parameters are read from."""
BLOCK = 1 << 24
"""Bytes that are compared at once."""
METADATA = "__metadata__"
LONGEST_HEADER = 100_000_000
"""Bytes that the format allows for a header."""


class Stored(Struct, frozen=True):
    file: str
    dtype: str
    shape: list[int]
    begin: int


Count = Annotated[int, Meta(ge=0, le=2**62)]


class _Entry(Struct):
    dtype: str
    shape: Annotated[list[Count], Meta(max_length=64)]
    data_offsets: tuple[Count, Count]


class _Index(Struct):
    weight_map: dict[str, str]


def has_weights(directory: Path) -> bool:
    return os.path.lexists(directory / INDEX) or any(directory.glob("*.safetensors"))


def stored_tensors(directory: Path) -> dict[str, Stored]:
    """Returns all tensors of a directory by name. Raises UserError with every problem."""
    found: dict[str, Stored] = {}
    problems: list[str] = []
    for path in _files(directory):
        with noting(problems):
            tensors = _read(path)
            twice = tensors.keys() & found.keys()
            problems += [f"{path}: {name} is in {found[name].file}, too: remove one" for name in sorted(twice)]
            found |= tensors
    refuse(problems)
    return found


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not os.path.lexists(index):
        return sorted(directory.glob("*.safetensors"))
    names = sorted(set(read_struct(index, _Index).weight_map.values()))
    if missing := [name for name in names if not os.path.exists(directory / name)]:  # noqa: PTH110 # raises nothing
        raise UserError(*(f"{index} names {name}, and there is no such file: download it again" for name in missing))
    return [directory / name for name in names]


def _read(path: Path) -> dict[str, Stored]:
    with refusing(str(path)), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LONGEST_HEADER, size - 8):
            raise UserError(f"{path}: {size:,} bytes are not a safetensors file: it is truncated or damaged")
        header = file.read(length)
    about = f"{path}: its header"
    table = decode(header, dict[str, msgspec.Raw], about)
    entries = {name: decode(bytes(raw), _Entry, f"{about}: {name}") for name, raw in table.items() if name != METADATA}
    problems = [problem for name, entry in entries.items() if (problem := _problem(entry, name, size - 8 - length))]
    if problems:
        raise UserError(*(f"{path}: {problem}" for problem in problems[:5]))
    return {
        name: Stored(str(path), entry.dtype, entry.shape, 8 + length + entry.data_offsets[0])
        for name, entry in entries.items()
    }


def _problem(entry: _Entry, name: str, size: int) -> str | None:
    begin, end = entry.data_offsets
    if entry.dtype not in SIZES:
        return None  # such as masks: an error only if it is read as a parameter
    if not 0 <= begin <= end or end - begin != math.prod(entry.shape) * SIZES[entry.dtype]:
        return f"{name}: {end - begin} bytes are not {entry.dtype} {entry.shape}: the file is damaged"
    if end > size:
        return f"{name} ends at byte {end:,} of {size:,}: the file is truncated: download it again"
    return None


def are_equal(one: Stored, other: Stored) -> bool:
    """Whether two tensors have the same bytes, dtype and shape. Raises UserError if a file has changed."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left = math.prod(one.shape) * SIZES[one.dtype]
    with refusing(one.file), open_regular(one.file) as first, refusing(other.file), open_regular(other.file) as second:
        first.seek(one.begin)
        second.seek(other.begin)
        while left > 0:
            block = first.read(min(left, BLOCK))
            if not block or block != second.read(len(block)):
                return False
            left -= len(block)
    return True
