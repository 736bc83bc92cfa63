"""Saves and loads the arrays of a checkpoint with Orbax, of a task or without running code of its model."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import SingleDeviceSharding

from ..models.array import name_of
from ..models.task import TrainState

KeyPath = tuple[Any, ...]


def save_arrays(checkpoint: epath.Path, state: TrainState) -> Any:
    """Copies the state to the host and writes it in the background; `.result()` waits for that and may raise."""
    from orbax.checkpoint import v1 as ocp  # half a second to import

    context = ocp.Context()
    if jax.process_count() == 1:  # splitting replicas gains nothing, and compiles each slice
        context.array.saving.use_replica_parallel = False
    with context:
        return ocp.save_async(checkpoint / "arrays", _fields(state))


def load_arrays(checkpoint: epath.Path, abstract: TrainState) -> TrainState:
    """Loads the state with the shardings of `abstract`, whichever it was saved with."""
    from orbax.checkpoint import v1 as ocp

    loaded = abstract._replace(**ocp.load(checkpoint / "arrays", _fields(abstract)))
    return jax.tree.map(lambda leaf, found: found if leaf.size else _empty(leaf), abstract, loaded)


def _fields(state: TrainState) -> dict[str, Any]:
    """Returns the trees without empty arrays, which Orbax refuses."""
    stored = jax.tree.map(lambda leaf: leaf if leaf.size else None, state)
    return {name: tree for name, tree in stored._asdict().items() if jax.tree.leaves(tree)}


def _empty(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: np.zeros(leaf.shape, leaf.dtype)[index]
    )


def small(abstract: TrainState) -> TrainState:
    """Returns arrays of one element with the names and types of the state's."""
    return jax.tree.map(lambda leaf: np.zeros((1,) * len(leaf.shape), leaf.dtype), abstract)


def stored_arrays(checkpoint: epath.Path) -> list[tuple[KeyPath, jax.Array]]:
    """Returns all arrays, with the shapes and dtypes in Orbax's metadata, on one device. Raises what Orbax raises."""
    from orbax.checkpoint import v1 as ocp  # half a second to import

    arrays, sharding = checkpoint / "arrays", SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), ocp.metadata(arrays).metadata
    )
    return jax.tree.leaves_with_path(ocp.load(arrays, abstract))


def stored_names(paths: Iterable[KeyPath], names: Collection[str]) -> list[str | None]:
    """Returns the name of each Orbax path among the state's `names`; None if there is none. Orbax stores all tree keys
    as text, without their types."""
    known = {_dotted(name): name for name in names}
    return [
        next((known[name] for name in map(_dotted, _possible_names(path)) if name in known), None) for path in paths
    ]


def _possible_names(path: KeyPath) -> Iterator[str]:
    """Yields possible names of the array at this path: a scalar's, a moment's whose short name is taken, any other
    moment's."""
    if name_of(path[:1]) not in ("params", "variables"):
        yield name_of(path, with_indices=True)
        yield name_of(path[1:], with_indices=True)
    yield name_of(path[1:])


def _dotted(name: str) -> str:
    return ".".join(re.findall(r"\w+", name.replace("<flat index ", "")))
