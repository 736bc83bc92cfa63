"""Reads what an item of an Orbax checkpoint says of its arrays: paths, shapes, dtypes and shardings, but no values.

Nothing is unpickled, and no code of the checkpoint runs: metadata are JSON, in files or in a store, or msgpack in items
that older versions wrote.
"""

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import msgspec
from etils import epath
from msgspec import Meta, Struct

from ..base.untrusted import decode, refusing
from ..base.user_error import UserError, noting
from ..program.pytree_arrays import Path
from ..wire.checkpoints import MAX_DIMS, Shape
from ..wire.descriptions import MeshInfo
from .array_store import MANIFEST, ArrayStore, StoredType
from .reading import content

METADATA, AGGREGATE, SHARDINGS = "_METADATA", "checkpoint", "_sharding"
WITHOUT_ARRAY = ("None", "Dict", "List", "Tuple", "NamedTuple", "string")
"""Types of values in `_METADATA` that are empty or text."""
IS_SEQUENCE = 1
"""The type of a key in `_METADATA` that is an index."""
PLACEHOLDERS = ("PLACEHOLDER://", "AGGREGATED://")
"""How a text in the aggregate begins that stands for an array in the store."""
NDARRAY, COMPLEX, SCALAR, TUPLE = range(1, 5)
"""Codes of the aggregate's extensions of msgpack."""
PYTHON_TYPES = {bool: "bool", int: "int64", float: "float64"}
MAX_DEVICES = 10**6


class Sharding(NamedTuple):
    mesh: MeshInfo
    spec: list[list[str]]
    """For each dim the mesh axes that split it."""


@dataclass(frozen=True)
class Stored:
    """An array of an item."""

    path: Path
    shape: list[int]
    dtype: Any
    sharding: Sharding | None
    """None if it was not saved from a mesh, or no sharding was saved."""


class _Key(Struct):
    key: str | int
    key_type: int = 0


class _Value(Struct):
    value_type: str = ""
    skip_deserialize: bool = False
    """It is empty, or in the aggregate."""


class _Entry(Struct):
    key_metadata: list[_Key]
    value_metadata: _Value = msgspec.field(default_factory=_Value)

    @property
    def path(self) -> Path:
        return tuple(int(each.key) if each.key_type == IS_SEQUENCE else str(each.key) for each in self.key_metadata)


class _Metadata(Struct):
    tree_metadata: dict[str, _Entry]
    use_ocdbt: bool | None = None
    use_zarr3: bool = False
    store_array_data_equal_to_fill_value: bool = False
    """Whether all pieces of an array are stored, even if they hold only zeros."""


class _Devices(Struct):
    mesh: Any


class _Sharding(Struct):
    """A sharding of any type in `_sharding`; only a `NamedSharding` has these fields."""

    shape: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_DEVICES)]], Meta(max_length=MAX_DIMS)] | None = None
    axis_names: list[str] = []
    partition_spec: list[str | list[str] | None] = []
    device_mesh: _Devices | None = None

    def of_rank(self, rank: int) -> Sharding | None:
        """Returns None if it is no `NamedSharding`. Raises ValueError if it cannot be that of an array."""
        if self.shape is None:
            return None
        axes = dict(zip(self.axis_names, self.shape, strict=True))
        count = math.prod(self.shape)
        if len(axes) < len(self.shape) or count > MAX_DEVICES:
            raise ValueError(f"a mesh {axes} of {count:,} devices")
        devices = list(_ids(self.device_mesh.mesh)) if self.device_mesh else list(range(count))
        spec = [[dim] if isinstance(dim, str) else dim or [] for dim in self.partition_spec]
        used = [axis for dim in spec for axis in dim]
        if len(set(devices)) != count or not set(used) <= set(axes) or len(set(used)) < len(used) or len(spec) > rank:
            raise ValueError(f"{self.partition_spec} of {rank} dims, mesh {axes}, {len(devices):,} devices")
        return Sharding(MeshInfo(axes, devices), spec + [[]] * (rank - len(spec)))


def _ids(mesh: Any) -> Iterator[int]:
    if isinstance(mesh, list):
        for part in mesh:  # pyright: ignore[reportUnknownVariableType]
            yield from _ids(part)
    else:
        yield msgspec.convert(mesh["id"], int)


def is_item(names: set[str]) -> bool:
    return not names.isdisjoint((METADATA, MANIFEST, AGGREGATE))


def read_item(directory: epath.Path) -> tuple[list[Stored], list[str]]:
    """Returns the arrays, and what is damaged or missing, one line each."""
    problems: list[str] = []
    try:
        metadata = decode(content(directory / METADATA), _Metadata, f"{directory / METADATA}")
    except UserError as error:
        metadata, problems = _Metadata({}), list(error.problems) if (directory / METADATA).exists() else []
    try:
        aggregate = _aggregate(directory)
        with refusing(f"{directory / METADATA}"):
            wanted = _wanted(metadata, aggregate)
        if not wanted and not metadata.tree_metadata:
            problems = problems or [f"{directory}: incomplete or damaged: no {METADATA}, which names the arrays"]
            return [], problems
        store = ArrayStore(directory, metadata.use_zarr3, metadata.use_ocdbt)
        types = store.read([_name(path) for path, known in wanted.items() if known is None], problems)
    except UserError as error:
        return [], [*problems, *error.problems]
    known = {_name(path): known for path, known in wanted.items() if known} | types
    shardings = _shardings(directory, problems)
    arrays = [
        _stored(path, found, shardings, directory, problems) for path in wanted if (found := known.get(_name(path)))
    ]
    problems += store.damage(types, metadata.store_array_data_equal_to_fill_value)
    return arrays, problems


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def _wanted(metadata: _Metadata, aggregate: dict[Path, StoredType | None]) -> dict[Path, StoredType | None]:
    """Returns the paths of all arrays, with the types of those in the aggregate."""
    if not metadata.tree_metadata:
        return aggregate
    wanted: dict[Path, StoredType | None] = {}
    for entry in metadata.tree_metadata.values():
        known = aggregate.get(tuple(map(str, entry.path)))
        value = entry.value_metadata
        if known or not (value.skip_deserialize or value.value_type in WITHOUT_ARRAY):
            wanted[entry.path] = known
    return wanted


def _aggregate(directory: epath.Path) -> dict[Path, StoredType | None]:
    """Returns the arrays that an old item has in one file, and the paths of those in its store, with None."""
    path = directory / AGGREGATE
    if path.is_dir():
        return {(AGGREGATE,): None}  # a single array, which has this name
    if not path.exists():
        return {}
    read = content(path)
    with refusing(f"{path}"):
        return dict(_leaves(msgspec.msgpack.decode(read, ext_hook=_extension), ()))


def _extension(code: int, data: memoryview) -> Any:
    if code in (NDARRAY, SCALAR):
        shape, dtype, _ = msgspec.msgpack.decode(data, type=tuple[Shape, str, msgspec.Raw])
        return StoredType(shape, dtype, shape)
    if code == TUPLE:
        return msgspec.msgpack.decode(data, ext_hook=_extension)
    return StoredType([], "complex128", []) if code == COMPLEX else None


def _leaves(tree: Any, path: Path) -> Iterator[tuple[Path, StoredType | None]]:
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):  # pyright: ignore
            yield from _leaves(value, (*path, str(key)))  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(tree, StoredType):
        yield path, tree
    elif isinstance(tree, str) and tree.startswith(PLACEHOLDERS):
        yield path, None
    elif type(tree) in PYTHON_TYPES:
        yield path, StoredType([], PYTHON_TYPES[type(tree)], [])


def _shardings(directory: epath.Path, problems: list[str]) -> dict[str, str]:
    path = directory / SHARDINGS
    with noting(problems):
        return decode(content(path), dict[str, str], f"{path}") if path.exists() else {}
    return {}


def _stored(
    path: Path, found: StoredType, shardings: dict[str, str], directory: epath.Path, problems: list[str]
) -> Stored:
    name, sharding = _name(path), None
    text = shardings.get(base64.urlsafe_b64encode(name.encode()).decode())
    label = f"{directory / SHARDINGS}: {name}"
    with noting(problems), refusing(label):
        sharding = decode(text, _Sharding, label).of_rank(len(found.shape)) if text else None
    return Stored(path, found.shape, jnp.dtype(found.dtype), sharding)
