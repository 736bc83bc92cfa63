"""Batches that a function of the user makes."""

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..base.invalid import Invalid
from ..wire.descriptions import CorpusInfo
from .array import Array, name_of
from .user_code import type_name

BYTE_VALUES = 256

Tree = Any
"""Arrays by name, as `batch` gives them."""


class OwnBatches:
    """What the user's `batch` makes: batch n is a function of n."""

    def __init__(self, made: Callable[[int], Tree], source: str, batch_size: int) -> None:
        """Raises Invalid where the first one is none."""
        self._made, self._source = made, source
        self._first = made(0)
        leaves = [(_batch_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(self._first)]
        problems = [
            f"{source}: {name} is {type_name(leaf)}: its first dim has to be the batch, {batch_size} examples: let "
            "batch take batch_size, or set it with --batch-size"
            for name, leaf in leaves
            if leaf.shape[:1] != (batch_size,)
        ]
        if not leaves:
            problems.append(f"{source} gives {type_name(self._first)}: it has to return an array, or a tree of arrays")
        if problems:
            raise Invalid(*problems)

    @property
    def arrays(self) -> Tree:
        """A batch with an `Array` in the place of every array."""

        def described(path: Any, leaf: np.ndarray) -> Array:
            axes = ("batch", *[None] * (leaf.ndim - 1))
            return Array((_batch_name(path),), "batch", leaf.shape, leaf.dtype, axes)

        return jax.tree_util.tree_map_with_path(described, self._first)

    def __getitem__(self, n: int) -> Tree:
        """Raises Invalid where it is not like the first one."""
        batch = self._made(n)
        found, first = (jax.tree.map(type_name, tree) for tree in (batch, self._first))
        if found != first:
            raise Invalid(f"{self._source}: batch({n}) is {found}, batch(0) was {first}: they have to be alike")
        return batch

    def rows(self, n: int, rows: range) -> Tree:
        """Those rows of batch n, which is made as a whole."""
        return jax.tree.map(lambda leaf: leaf[rows.start : rows.stop], self[n])

    def describe(self) -> CorpusInfo:
        """The first batch stands for all: a run that goes on has to have the same."""
        leaves = jax.tree.leaves(self._first)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves))
        return CorpusInfo(self._source, 0, sum(leaf.nbytes for leaf in leaves), digest.hexdigest())


def on_host(leaf: Any) -> np.ndarray:
    """In the dtype that jax has for it."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _batch_name(path: Any) -> str:
    return ".".join(filter(None, ("batch", name_of(path, with_numbers=True))))
