"""Batches from the user's `batch` function."""

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..base.user_error import UserError, refuse
from ..wire.descriptions import CorpusInfo
from .array import Array, name_of
from .user_code import type_name

BYTE_VALUES = 256
Tree = Any


class UserBatches:
    """The batches of the user's `batch` function. Batch n must depend on n alone."""

    def __init__(self, make_batch: Callable[[int], Tree], source: str, batch_size: int) -> None:
        """`source` names the function in messages. Raises UserError if the first batch is wrong."""
        self._make_batch, self._source = make_batch, source
        self._first = make_batch(0)
        leaves = [(_batch_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(self._first)]
        problems = [
            f"{source}: {name} is {type_name(leaf)}: its first dim must be the batch size, {batch_size}: let "
            "batch take batch_size, or set --batch-size"
            for name, leaf in leaves
            if leaf.shape[:1] != (batch_size,)
        ]
        if not leaves:
            problems.append(f"{source} returned {type_name(self._first)}: it must return an array or a tree of arrays")
        refuse(problems)

    @property
    def arrays(self) -> Tree:
        def describe(path: Any, leaf: np.ndarray) -> Array:
            axes = ("batch", *[None] * (leaf.ndim - 1))
            return Array((_batch_name(path),), "batch", leaf.shape, leaf.dtype, axes)

        return jax.tree_util.tree_map_with_path(describe, self._first)

    def __getitem__(self, n: int) -> Tree:
        """Returns batch n on the host. Raises UserError if it differs from the first in structure, shapes or dtypes."""
        batch = self._make_batch(n)
        found, first = (jax.tree.map(type_name, tree) for tree in (batch, self._first))
        if found != first:
            raise UserError(
                f"{self._source}: batch({n}) is {found}, batch(0) was {first}: return the same structure, shapes and "
                "dtypes for every step"
            )
        return batch

    def rows(self, n: int, rows: range) -> Tree:
        """Returns these rows of batch n. All of batch n is made for it."""
        return jax.tree.map(lambda leaf: leaf[rows.start : rows.stop], self[n])

    def describe(self) -> CorpusInfo:
        """Describes the data by the first batch, which must be the same when a run resumes."""
        leaves = jax.tree.leaves(self._first)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves))
        return CorpusInfo(self._source, 0, sum(leaf.nbytes for leaf in leaves), digest.hexdigest())


def on_host(leaf: Any) -> np.ndarray:
    """Returns the array as a NumPy array in the dtype that jax uses for it, such as float32 for float64."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _batch_name(path: Any) -> str:
    return ".".join(filter(None, ("batch", name_of(path, with_indices=True))))
