"""The arrays of a checkpoint as they lie on the disk, loaded and named without the model: none of its code runs."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jax
from etils import epath
from jax.sharding import SingleDeviceSharding

from ..models.array import name_of

KeyPath = tuple[Any, ...]


def stored_arrays(checkpoint: epath.Path) -> list[tuple[KeyPath, jax.Array]]:
    """All of them, in the shapes and dtypes that Orbax noted, on one device of this machine. Raises what Orbax does."""
    from orbax.checkpoint import v1 as ocp  # half a second to import

    arrays, sharding = checkpoint / "arrays", SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), ocp.metadata(arrays).metadata
    )
    return jax.tree.leaves_with_path(ocp.load(arrays, abstract))


def stored_names(paths: Iterable[KeyPath], names: Collection[str]) -> list[str | None]:
    """Which of the state's `names` each array has that Orbax keeps under a path; None where it has none of them.

    Orbax keeps the keys of all trees as text, and forgets of what type they were.
    """
    known = {_plain(name): name for name in names}
    return [next((known[name] for name in map(_plain, _possible(path)) if name in known), None) for path in paths]


def _possible(path: KeyPath) -> Iterator[str]:
    """What `task` may call the array of that place: of an optimizer a scalar, a moment whose short name another has, or
    any other moment."""
    if name_of(path[:1]) not in ("params", "variables"):
        yield name_of(path, with_numbers=True)
        yield name_of(path[1:], with_numbers=True)
    yield name_of(path[1:])


def _plain(name: str) -> str:
    """`opt_state.1.0.count` of `opt_state[1][0].count`."""
    return ".".join(re.findall(r"\w+", name.replace("<flat index ", "")))
