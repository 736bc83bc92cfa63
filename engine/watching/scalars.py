"""The floating scalars among a function's results."""

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey, KeyPath, SequenceKey

from ..program.pytree_arrays import path_of


class Scalars:
    """Reads the scalars from every result of a function, without flattening its state."""

    def __init__(self, result: Any, state: Collection[int], is_mapped: bool = False) -> None:
        """`state`: indices of the leaves that the function takes again: it may donate them. `is_mapped`: whether it
        returns an axis of devices before all others."""
        every = jax.tree_util.tree_flatten_with_path(result)[0]
        self._at = [at for at, (_, leaf) in enumerate(every) if at not in state and is_scalar(leaf, is_mapped)]
        paths = [every[at][0] for at in self._at]
        self.names = _names(paths)
        """Unique names; an empty one for a single scalar at no key."""
        self._getters = _getters(paths)

    def put_first(self, name: str) -> None:
        order = sorted(range(len(self.names)), key=lambda at: self.names[at] != name)
        self.names, self._at = [self.names[at] for at in order], [self._at[at] for at in order]
        self._getters = self._getters and [self._getters[at] for at in order]

    def values(self, result: Any) -> list[Any]:
        """Returns the scalars in the order of their names. Raises LookupError, AttributeError or TypeError for a result
        of another form."""
        if self._getters is None:
            leaves = jax.tree.leaves(result)
            return [leaves[at] for at in self._at]
        values: list[Any] = []
        for getters in self._getters:
            value = result
            for get in getters:
                value = get(value)
            values.append(value)
        return values

    def pick(self, leaves: Mapping[int, Any]) -> dict[str, Any]:
        """Returns the scalars by name from a result's leaves, which are given by index, as far as they are there."""
        return {name: leaves[at] for name, at in zip(self.names, self._at, strict=True) if at in leaves}


def is_scalar(leaf: Any, is_mapped: bool = False) -> bool:
    """Returns whether a leaf is a floating scalar: of a mapped function, one on each device."""
    return isinstance(leaf, jax.Array) and len(leaf.shape) == is_mapped and jnp.issubdtype(leaf.dtype, jnp.floating)


def loss_rank(name: str) -> tuple[int, int]:
    """Orders the names of scalars: one called `loss`, with the fewest keys before it, then one with a name like it."""
    *outer, last = name.lower().split("/")
    return (0, len(outer)) if last == "loss" else (1 if "loss" in last else 2, 0)


def _names(paths: list[KeyPath]) -> list[str]:
    """Returns `metrics/grad_norm` for each path: its keys without indices, where these are not needed."""
    full = [path_of(keys) for keys in paths]
    short = [_joined(key for key in path if isinstance(key, str)) for path in full]
    if len(short) == 1:
        return short
    return [name if name and short.count(name) == 1 else _joined(path) for name, path in zip(short, full, strict=True)]


def _joined(path: Iterable[str | int]) -> str:
    return "/".join(map(str, path))


def _getters(paths: list[KeyPath]) -> list[list[Any]] | None:
    """Returns the functions that lead to each leaf; None if a container has no such functions."""
    found: list[list[Any]] = []
    for path in paths:
        found.append([])
        for key in path:
            match key:
                case SequenceKey():
                    found[-1].append(itemgetter(key.idx))
                case DictKey():
                    found[-1].append(itemgetter(key.key))
                case GetAttrKey():
                    found[-1].append(attrgetter(key.name))
                case _:
                    return None
    return found
