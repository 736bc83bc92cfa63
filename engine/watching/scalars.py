"""The floating scalars among a step's results: its curves."""

from collections.abc import Collection, Iterable
from operator import attrgetter, itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey, KeyPath, SequenceKey

from ..program.pytree_arrays import path_of


class Scalars:
    """Reads the scalars from every result of a step, without flattening its state."""

    def __init__(self, result: Any, state: Collection[int]) -> None:
        """`state`: indices of the leaves that the step takes again: it may donate them."""
        every = jax.tree_util.tree_flatten_with_path(result)[0]
        self._at = [at for at, (_, leaf) in enumerate(every) if at not in state and _is_scalar(leaf)]
        paths = [every[at][0] for at in self._at]
        self.names = _names(paths)
        self._getters = _getters(paths)
        self.loss = min(self.names, key=_by_loss, default=None)
        """Name of the loss: the scalar called so, else one with a name like it, else the first."""

    def read(self, result: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the loss, None if there is no scalar, and the others by name. Raises LookupError, AttributeError or
        TypeError for a result of another form."""
        values = self._read(result)
        return (values.pop(self.loss) if self.loss else None), values

    def _read(self, result: Any) -> dict[str, Any]:
        if self._getters is None:
            found = jax.tree.leaves(result)
            return {name: found[at] for name, at in zip(self.names, self._at, strict=True)}
        values: dict[str, Any] = {}
        for name, getters in zip(self.names, self._getters, strict=True):
            value = result
            for get in getters:
                value = get(value)
            values[name] = value
        return values


def _is_scalar(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.shape and jnp.issubdtype(leaf.dtype, jnp.floating)


def _names(paths: list[KeyPath]) -> list[str]:
    """Returns `metrics/grad_norm` for each path: its keys without indices, where these are not needed."""
    full = [path_of(keys) for keys in paths]
    short = [_joined(key for key in path if isinstance(key, str)) for path in full]
    if short == [""]:
        return ["loss"]
    return [name if name and short.count(name) == 1 else _joined(path) for name, path in zip(short, full, strict=True)]


def _joined(path: Iterable[str | int]) -> str:
    return "/".join(map(str, path))


def _by_loss(name: str) -> tuple[int, int]:
    *outer, last = name.lower().split("/")
    return (0, len(outer)) if last == "loss" else (1 if "loss" in last else 2, 0)


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
