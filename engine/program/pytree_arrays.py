"""Describes the arrays of any pytree: name, kind and sharding. Their data is never touched."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from jax.tree_util import KeyPath

from ..parallel.rules import LogicalAxes

Kind = Literal["parameter", "moment", "scalar"]
Path = tuple[str | int, ...]
"""Keys and indices from the root of a pytree to a leaf."""

CONTAINERS = ("params", "model", "state", "variables")
"""Keys of containers of all parameters; they are left out of names."""
OPTIMIZERS = ("opt_state", "optimizer_state", "optimizer", "opt")
"""Keys of optimizer states, for optimizers whose types do not show it."""


@dataclass(frozen=True)
class Leaf:
    """An array in a pytree, or an abstract one."""

    path: Path
    shape: tuple[int, ...]
    """The global shape."""
    dtype: Any
    sharding: Sharding | None
    """None for an abstract array without one."""
    is_committed: bool
    """Whether a step takes the array in its sharding. If not, the step chooses one."""
    optimizer_depth: int | None
    """How many keys of the path lead to the optimizer state that holds the array; None if none does."""
    logical_axes: LogicalAxes
    """One name per dim, None where a dim has none."""
    identity: int
    """The array's `id`, valid while it is alive."""
    optax_depth: int = 0
    """How many keys lead to the optax state that has the array in a field of its own; indices before it are positions
    in chains."""

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape, self.dtype)

    @property
    def kind(self) -> Kind:
        return kind_of(self.shape, self.dtype, self.optimizer_depth)

    @property
    def short_path(self) -> Path:
        """The path without keys of containers and indices of chains: `up.kernel`, and `mu.up.kernel` for its moment."""
        start = self.optimizer_depth or 0
        chain = [key for key in self.path[start : self.optax_depth] if isinstance(key, str)]
        path = (*chain, *self.path[max(start, self.optax_depth) :])
        containers = CONTAINERS if self.optimizer_depth is None else OPTIMIZERS
        while len(path) > 1 and (isinstance(path[0], int) or path[0] in containers):
            path = path[1:]
        return path


def leaves(tree: Any, path: Path = (), optimizer_depth: int | None = None) -> Iterator[Leaf]:
    """Yields every array and `ShapeDtypeStruct` of a pytree, in jax's order. Other leaves are skipped.

    For the state of an optax transformation, `path` leads to it, and `optimizer_depth` is as in `Leaf`.
    """
    boxes, depths = _boxes(), (optimizer_depth, 0 if optimizer_depth is None else len(path))

    def is_known(node: Any) -> bool:
        return node is not tree and (_is_optax(node) or isinstance(node, boxes))

    for keys, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_known)[0]:
        here = (*path, *path_of(keys))
        if isinstance(node, boxes):
            for keys_inside, array in jax.tree_util.tree_flatten_with_path(node)[0]:
                inside = (*here, *path_of(keys_inside[1:]))  # the first key is of the box itself
                yield from _leaf(array, inside, depths, _axes(node))
        elif _is_optax(node):
            yield from leaves(node, here, len(here) if optimizer_depth is None else optimizer_depth)
        else:
            yield from _leaf(node, here, depths, ())


def unique_names(paths: Sequence[tuple[Path, Path]]) -> list[str]:
    """Returns a unique name for each pair of a short and a full path.

    That is the short path if it is unique, else the full path, else (if keys contain dots) the full path with each key
    in brackets: `['a.b']`.
    """
    short = [_joined(path) for path, _ in paths]
    counts = Counter(short)
    full = [name if counts[name] == 1 else _joined(path) for name, (_, path) in zip(short, paths, strict=True)]
    counts = Counter(full)
    return [
        name if counts[name] == 1 else "".join(f"[{key!r}]" for key in path)
        for name, (_, path) in zip(full, paths, strict=True)
    ]


def _joined(path: Path) -> str:
    return ".".join(map(str, path))


def bytes_of(shape: Sequence[int], dtype: Any) -> int:
    """Returns an array's bytes as compilers count them: dtypes smaller than a byte are packed."""
    size = math.prod(shape)
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # random keys
        return size * dtype.itemsize
    return -(-size * jax.dtypes.itemsize_bits(dtype) // 8)


def _leaf(array: Any, path: Path, depths: tuple[int | None, int], axes: LogicalAxes) -> Iterator[Leaf]:
    if not isinstance(array, jax.Array | jax.ShapeDtypeStruct):
        return
    optimizer_depth, optax_depth = depths
    yield Leaf(
        path=path or ("state",),
        shape=tuple(array.shape),
        dtype=array.dtype,
        sharding=array.sharding,
        is_committed=getattr(array, "committed", True),
        optimizer_depth=depth_by_key(path) if optimizer_depth is None else optimizer_depth,
        logical_axes=axes if len(axes) == len(array.shape) else (None,) * len(array.shape),
        identity=id(array),
        optax_depth=optax_depth,
    )


def kind_of(shape: Sequence[int], dtype: Any, optimizer_depth: int | None) -> Kind:
    """Returns the kind of array, by its position in the tree. Running statistics of a model count as parameters."""
    is_counter = len(shape) < 2 and not jnp.issubdtype(dtype, jnp.inexact)  # or a random key
    if not shape or is_counter:
        return "scalar"
    return "parameter" if optimizer_depth is None else "moment"


def depth_by_key(path: Path) -> int | None:
    """Returns how many keys lead to the optimizer state, by its usual keys; None if none of them is in the path."""
    return next((at + 1 for at, key in enumerate(path[:-1]) if key in OPTIMIZERS), None)


def path_of(keys: KeyPath) -> Path:
    return tuple(map(_key, keys))


def _key(key: Any) -> str | int:
    """Returns one key of a key path: a field's name, a dict key, or an index."""
    found = next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key)
    return found if isinstance(found, int) else str(found)


def _boxes() -> tuple[type, ...]:
    """Returns flax's wrappers of arrays. If the caller has not imported flax, neither does this: it takes a second."""
    nnx, meta = sys.modules.get("flax.nnx"), sys.modules.get("flax.core.meta")
    return (*([nnx.Variable] if nnx else ()), *([meta.Partitioned] if meta else ()))


def _axes(box: Any) -> LogicalAxes:
    names = box.get_metadata().get("out_sharding") if hasattr(box, "get_metadata") else box.names
    return tuple(name if isinstance(name, str) else None for name in names or ())


def _is_optax(node: Any) -> bool:
    """Whether a node is the state of an optax transformation: a tuple of a type from optax."""
    return isinstance(node, tuple) and type(node).__module__.partition(".")[0] == "optax"
