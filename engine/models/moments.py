"""Describes the arrays of an optimizer's state: whose they are, and how they are laid out."""

from collections import Counter
from typing import Any

import jax

from ..parallel.rules import LogicalAxes
from .array import Array, name_of

Tree = Any


def describe_moments(opt_state: Tree, params: Tree) -> Tree:
    """Returns `opt_state` with an `Array` in place of every leaf; `params` has the parameters' `Array`s.

    An array belongs to the parameter whose path ends its own. Names that would be equal get optax's chain indices.
    """
    counts = Counter(name_of(path) for path, _ in jax.tree.leaves_with_path(opt_state))
    owners = dict(jax.tree.leaves_with_path(params))

    def describe(path: Any, leaf: Any) -> Array:
        owner = next((owners[path[start:]] for start in range(len(path)) if path[start:] in owners), None)
        return _describe_moment(path, counts[name_of(path)] > 1, leaf, owner)

    return jax.tree_util.tree_map_with_path(describe, opt_state)


def _describe_moment(path: Any, with_indices: bool, leaf: Any, owner: Array | None) -> Array:
    axes = _moment_axes(path, leaf.shape, owner) if owner else None
    if owner is None or axes is None:
        name = f"opt_state{jax.tree_util.keystr(path)}"
        return Array((name,), "scalar", leaf.shape, leaf.dtype, (None,) * leaf.ndim)
    parameter = owner.names if leaf.shape == owner.shape else ()  # whose overrides name all its dims
    return Array((name_of(path, with_indices), *parameter), "moment", leaf.shape, leaf.dtype, axes)


def _moment_axes(path: tuple[Any, ...], shape: tuple[int, ...], owner: Array) -> LogicalAxes | None:
    """Returns the logical axes of an array of the optimizer's state that belongs to a parameter, `owner`.

    Adafactor's means of a row and of a column lack its largest dim and its second largest. None if the array has
    another shape, such as the placeholders of what is not kept.
    """
    if shape == owner.shape:
        return owner.logical_axes
    keys = [getattr(key, "name", None) for key in path]
    if len(owner.shape) < 2 or not {"v_row", "v_col"} & set(keys):
        return None
    *_, second, largest = sorted(range(len(owner.shape)), key=lambda dim: owner.shape[dim])
    lacks = largest if "v_row" in keys else second
    kept = [dim for dim in range(len(owner.shape)) if dim != lacks]
    return tuple(owner.logical_axes[dim] for dim in kept) if shape == tuple(owner.shape[dim] for dim in kept) else None
