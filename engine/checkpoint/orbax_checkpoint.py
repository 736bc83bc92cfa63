"""Describes any Orbax checkpoint from its metadata."""

import re
from collections.abc import Iterator

from etils import epath
from msgspec import Struct

from ..base.untrusted import decode, refusing
from ..base.user_error import UserError
from ..program.pytree_arrays import bytes_of, depth_by_key, kind_of, unique_names
from ..wire.checkpoints import StoredArray, StoredCheckpoint
from ..wire.descriptions import MeshInfo
from .orbax_item import Stored, is_item, read_item
from .reading import as_user_error, content, is_local, names_in

STEP = re.compile(r"(?:.*_)?(\d{1,18})")
"""The name of a step's directory, such as `20` and `checkpoint_00000020`."""
TEMPORARY = ".orbax-checkpoint-tmp"
"""What the name of a directory has that is still being written, or was left behind."""
STEP_METADATA, COMMITTED = "_CHECKPOINT_METADATA", "commit_success.txt"
MAX_DEPTH = 2
"""Directories between the given one and an item."""


class _StepMetadata(Struct):
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None


def describe_checkpoints(*directories: str) -> Iterator[StoredCheckpoint]:
    """Yields the description of each checkpoint. Raises UserError if there is none."""
    for directory in directories:
        yield described(directory)[0]


def described(directory: str) -> tuple[StoredCheckpoint, list[Stored]]:
    """Returns the description, and its arrays in the same order."""
    given = epath.Path(directory)
    with refusing(f"--checkpoint {directory}"), as_user_error():
        root, steps, problems = _newest(given)
        items = list(_items(root, MAX_DEPTH))
    if not items:
        names = ", ".join(sorted(names_in(root) or [])[:8])
        raise UserError(
            f"--checkpoint {directory}: no Orbax checkpoint: neither arrays nor a directory of a step"
            + (f": it has {names}" if names else "")
        )
    problems += _commit_problems(root)
    names = [str(item.relative_to(root)) for item in items]
    found: list[tuple[str, Stored]] = []
    for name, item in zip(names, items, strict=True):
        arrays, damage = read_item(item)
        found += ((name, array) for array in arrays)
        problems += damage
    paths = [(name, *array.path) if len(items) > 1 else array.path for name, array in found]
    meshes = _distinct([array.sharding.mesh for _, array in found if array.sharding])
    found_as = StoredCheckpoint(
        directory=str(root),
        newest_of=steps,
        items=["" if name == "." else name for name in names],
        meshes=meshes,
        arrays=[
            _array(name, array, meshes)
            for name, (_, array) in zip(unique_names([(path, path) for path in paths]), found, strict=True)
        ],
        problems=problems,
    )
    return found_as, [array for _, array in found]


def _newest(directory: epath.Path) -> tuple[epath.Path, int, list[str]]:
    """Returns the directory of the newest step, or itself; the number of steps; and which are incomplete."""
    names = names_in(directory)
    if names is None:
        raise UserError(f"{directory}: no such directory")
    if is_item(set(names)) or STEP_METADATA in names:
        return directory, 0, []
    incomplete = [
        f"{directory / name}: incomplete: it was not written to its end" for name in names if TEMPORARY in name
    ]
    steps = {int(match[1]): name for name in names if (match := STEP.fullmatch(name)) and (directory / name).is_dir()}
    if steps:
        return directory / steps[max(steps)], len(steps), incomplete
    if "checkpoints" in names:  # the directory of a run
        return _newest(directory / "checkpoints")
    return directory, 0, incomplete


def _items(directory: epath.Path, depth: int) -> Iterator[epath.Path]:
    names = set(names_in(directory) or ())
    if is_item(names):
        yield directory
    elif depth:
        for name in sorted(names):
            if TEMPORARY not in name and (directory / name).is_dir():
                yield from _items(directory / name, depth - 1)


def _commit_problems(root: epath.Path) -> list[str]:
    """Returns why the checkpoint is incomplete as a whole; empty if it is complete."""
    if TEMPORARY in root.name:
        return [f"{root}: incomplete: it was not written to its end"]
    path = root / STEP_METADATA
    try:
        found = decode(content(path), _StepMetadata, f"{path}") if path.exists() else None
    except UserError as error:
        return list(error.problems)
    if found and found.init_timestamp_nsecs:
        late = (
            [] if found.commit_timestamp_nsecs else [f"{STEP_METADATA} has the time of its begin, but not of its end"]
        )
    else:  # of a version that wrote neither
        late = [] if is_local(root) or (root / COMMITTED).exists() else [f"no {COMMITTED}, which is written last"]
    return [f"{root}: incomplete: {why}" for why in late]


def _distinct(meshes: list[MeshInfo]) -> list[MeshInfo]:
    """Returns each mesh once, the most frequent first."""
    keys = [(tuple(mesh.axes.items()), tuple(mesh.device_ids)) for mesh in meshes]
    by_key = dict(zip(keys, meshes, strict=True))
    return [by_key[key] for key in sorted(by_key, key=lambda key: -keys.count(key))]


def _array(name: str, stored: Stored, meshes: list[MeshInfo]) -> StoredArray:
    spec = stored.sharding.spec if stored.sharding else [[]] * len(stored.shape)
    return StoredArray(
        name=name,
        kind=kind_of(stored.shape, stored.dtype, depth_by_key(stored.path)),
        shape=stored.shape,
        dtype=stored.dtype.name,
        bytes=bytes_of(stored.shape, stored.dtype),
        logical_axes=[None] * len(stored.shape),
        spec=spec,
        compiled_spec=spec,
        reasons=[],
        mesh=meshes.index(stored.sharding.mesh) if stored.sharding else None,
    )
