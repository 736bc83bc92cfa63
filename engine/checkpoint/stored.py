"""Loads and names the arrays of a checkpoint without its model, so that no code of the model runs."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jax
from etils import epath
from jax.sharding import SingleDeviceSharding

from ..models.array import name_of

KeyPath = tuple[Any, ...]


def stored_arrays(checkpoint: epath.Path) -> list[tuple[KeyPath, jax.Array]]:
    """Returns all arrays, with the shapes and dtypes in Orbax's metadata, on one device. Raises what Orbax raises."""
    from orbax.checkpoint import v1 as ocp  # half a second to import

    arrays, sharding = checkpoint / "arrays", SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), ocp.metadata(arrays).metadata
    )
    return jax.tree.leaves_with_path(ocp.load(arrays, abstract))


def stored_names(paths: Iterable[KeyPath], names: Collection[str]) -> list[str | None]:
    """Returns for each Orbax path the one of the state's `names` that belongs to it; None if none does.

    Orbax stores all tree keys as text, without their types.
    """
    known = {_dotted(name): name for name in names}
    return [
        next((known[name] for name in map(_dotted, _possible_names(path)) if name in known), None) for path in paths
    ]


def _possible_names(path: KeyPath) -> Iterator[str]:
    """Yields the names that `Task` may give the array at this path.

    For optimizer state: that of a scalar, that of a moment whose short name is taken, and that of any other moment.
    """
    if name_of(path[:1]) not in ("params", "variables"):
        yield name_of(path, with_indices=True)
        yield name_of(path[1:], with_indices=True)
    yield name_of(path[1:])


def _dotted(name: str) -> str:
    """Returns `opt_state.1.0.count` for `opt_state[1][0].count`."""
    return ".".join(re.findall(r"\w+", name.replace("<flat index ", "")))
