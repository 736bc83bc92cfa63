"""The arrays of any pytree: what each is called, what it is for, and where it lies. Their data is never touched."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from ..parallel.rules import LogicalAxes

Path = tuple[str | int, ...]

CONTAINERS = ("params", "model", "state", "variables")
"""Keys that hold all parameters and say nothing of one."""
OPTIMIZERS = ("opt_state", "optimizer_state", "optimizer", "opt")
"""Keys that hold what an optimizer keeps, where its types do not tell."""


@dataclass(frozen=True)
class Leaf:
    path: Path
    shape: tuple[int, ...]
    dtype: Any
    sharding: Sharding | None
    """None where a description has none."""
    is_committed: bool
    """A step takes it where it lies; otherwise the step says where."""
    optimizer: int | None
    """How much of the path leads to the optimizer that it belongs to; None where it belongs to none."""
    logical_axes: LogicalAxes

    identity: int
    """Of the array, for as long as it lives."""

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape, self.dtype)

    @property
    def kind(self) -> Literal["parameter", "moment", "scalar"]:
        """By where it stands. Running statistics of a model count among its parameters."""
        is_counter = len(self.shape) < 2 and not jnp.issubdtype(self.dtype, jnp.inexact)
        if not self.shape or is_counter:  # keys of random numbers, too
            return "scalar"
        return "parameter" if self.optimizer is None else "moment"

    @property
    def short_path(self) -> Path:
        """Without the keys that only hold others: `up.kernel`, and `mu.up.kernel` of its moment."""
        path = self.path[self.optimizer or 0 :]
        holders = CONTAINERS if self.optimizer is None else OPTIMIZERS
        while len(path) > 1 and (isinstance(path[0], int) or path[0] in holders):
            path = path[1:]
        return path


def leaves(tree: Any, path: Path = (), optimizer: int | None = None) -> Iterator[Leaf]:
    """Of every array, or description of one, in the order of jax. Leaves that are no arrays are passed over."""
    boxes = _boxes()

    def is_known(node: Any) -> bool:
        return node is not tree and (_is_optax(node) or isinstance(node, boxes))

    for keys, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_known)[0]:
        here = (*path, *map(_key, keys))
        if isinstance(node, boxes):
            for keys_inside, array in jax.tree_util.tree_flatten_with_path(node)[0]:
                inside = (*here, *map(_key, keys_inside[1:]))  # the first leads into the box
                yield from _leaf(array, inside, optimizer, _axes(node))
        elif _is_optax(node):
            yield from leaves(node, here, len(here) if optimizer is None else optimizer)
        else:
            yield from _leaf(node, here, optimizer, ())


def named(paths: Sequence[tuple[Path, Path]]) -> list[str]:
    """Of pairs of a short path and the whole one: the short one, the whole where the short one is not alone, and where
    keys have dots in them and that is not alone either, with each key by itself: `['a.b']`."""
    short = [_joined(path) for path, _ in paths]
    known = Counter(short)
    whole = [name if known[name] == 1 else _joined(path) for name, (_, path) in zip(short, paths, strict=True)]
    known = Counter(whole)
    return [
        name if known[name] == 1 else "".join(f"[{key!r}]" for key in path)
        for name, (_, path) in zip(whole, paths, strict=True)
    ]


def _joined(path: Path) -> str:
    return ".".join(map(str, path))


def bytes_of(shape: Sequence[int], dtype: Any) -> int:
    """Of an array, as a compiler counts: types of less than a byte are packed."""
    size = math.prod(shape)
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # keys of random numbers
        return size * dtype.itemsize
    return -(-size * jax.dtypes.itemsize_bits(dtype) // 8)


def _leaf(array: Any, path: Path, optimizer: int | None, axes: LogicalAxes) -> Iterator[Leaf]:
    if not isinstance(array, jax.Array | jax.ShapeDtypeStruct):
        return
    by_name = (at + 1 for at, key in enumerate(path[:-1]) if key in OPTIMIZERS)
    yield Leaf(
        path=path or ("state",),
        shape=tuple(array.shape),
        dtype=array.dtype,
        sharding=array.sharding,
        is_committed=getattr(array, "committed", True),
        optimizer=next(by_name, None) if optimizer is None else optimizer,
        logical_axes=axes if len(axes) == len(array.shape) else (None,) * len(array.shape),
        identity=id(array),
    )


def _key(key: Any) -> str | int:
    """Of a key path: a field, a key of a dict, or a place in a sequence."""
    found = next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key)
    return found if isinstance(found, int) else str(found)


def _boxes() -> tuple[type, ...]:
    """What flax puts around an array, where the caller has loaded flax: it takes a second."""
    nnx, meta = sys.modules.get("flax.nnx"), sys.modules.get("flax.core.meta")
    return (*([nnx.Variable] if nnx else ()), *([meta.Partitioned] if meta else ()))


def _axes(box: Any) -> LogicalAxes:
    names = box.get_metadata().get("out_sharding") if hasattr(box, "get_metadata") else box.names
    return tuple(name if isinstance(name, str) else None for name in names or ())


def _is_optax(node: Any) -> bool:
    """The state of a transformation: a tuple of a type of optax."""
    return isinstance(node, tuple) and type(node).__module__.partition(".")[0] == "optax"
