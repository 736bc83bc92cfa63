"""Reshards the live state from one placement to another, leaf by leaf, and verifies that nothing changed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding

from ..models.task import TrainState
from .digest import joined
from .program import Program

Transfer = Callable[[jax.Array], jax.Array]
"""A compiled identity function from one sharding to another."""


class SwitchError(Exception):
    """The resharded state differs from the one before."""


@dataclass
class Transfers:
    """Compiles transfers and keeps them, one per (shape, dtype, source, target)."""

    _kept: dict[tuple[Any, ...], Transfer] = field(default_factory=dict)

    def prepare(self, state: TrainState, source: TrainState, target: TrainState) -> int:
        """Compiles the transfers that are not kept yet, and returns their number.

        `state` may be abstract; `source` and `target` hold shardings.
        """
        kept = len(self._kept)
        for leaf, old, new in _zip_leaves(state, source, target):
            if not old.is_equivalent_to(new, leaf.ndim):
                self._transfer(leaf, old, new)
        return len(self._kept) - kept

    def clear(self) -> None:
        """Drops all transfers; they are compiled again on demand."""
        self._kept.clear()

    def move(self, state: TrainState, target: TrainState, free_source: bool = False) -> TrainState:
        """Returns `state` in the target's shardings.

        With `free_source` each leaf is deleted once it is moved; otherwise `state` remains valid. Leaves move one at a
        time: that bounds the memory, and on CPU the collectives of concurrent programs can deadlock.
        """
        leaves, treedef = jax.tree.flatten(state)
        shardings = jax.tree.leaves(target)
        return treedef.unflatten(
            [self._move(leaf, new, free_source) for leaf, new in zip(leaves, shardings, strict=True)]
        )

    def _move(self, leaf: jax.Array, new: NamedSharding, free_source: bool) -> jax.Array:
        if leaf.sharding.is_equivalent_to(new, leaf.ndim):
            return jax.device_put(leaf, new)  # moves no data: the same shards on the new mesh
        moved = jax.block_until_ready(self._transfer(leaf, leaf.sharding, new)(leaf))
        if free_source:
            leaf.delete()
        return moved

    def _transfer(self, leaf: Any, old: Sharding, new: NamedSharding) -> Transfer:
        key = (leaf.shape, leaf.dtype, old, new)
        transfer = self._kept.get(key)
        if transfer is None:
            abstract = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=old)
            self._kept[key] = transfer = jax.jit(_identity, out_shardings=new).lower(abstract).compile()
        return transfer


def move_state(
    state: TrainState, source: Program, target: Program, transfers: Transfers, free_source: bool = False
) -> TrainState:
    """Moves the state to the target's shardings, and verifies it by digests before and after.

    Raises SwitchError if an array changed or has a wrong sharding. Either way `state` remains valid, unless
    `free_source`.
    """
    before = joined(source.digest(state))
    moved = transfers.move(state, target.placement.state_shardings, free_source)
    for leaf, new in _zip_leaves(moved, target.placement.state_shardings):
        if leaf.sharding != new:
            raise SwitchError(f"an array {leaf.shape} has sharding {leaf.sharding} after the switch instead of {new}")
    if changed := np.count_nonzero(before != joined(target.digest(moved))):
        raise SwitchError(f"{changed} of {before.size} arrays changed in the switch")
    return moved


def bytes_moved(state: TrainState, source: TrainState, target: TrainState) -> int:
    """Returns the bytes that devices need for the target and do not hold yet, summed over devices.

    They are counted from the shardings; the collectives may send more.
    """
    return sum(
        leaf.dtype.itemsize * _elements_moved(leaf.shape, old, new)
        for leaf, old, new in _zip_leaves(state, source, target)
    )


def _elements_moved(shape: Sequence[int], old: Sharding, new: Sharding) -> int:
    held = old.devices_indices_map(tuple(shape))
    return sum(
        _volume(shape, box, box) - _volume(shape, box, held[device])
        for device, box in new.devices_indices_map(tuple(shape)).items()
    )


def _volume(shape: Sequence[int], a: Any, b: Any) -> int:
    edges = ((x.indices(size), y.indices(size)) for size, x, y in zip(shape, a, b, strict=True))
    return math.prod(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x, y in edges)


def _zip_leaves(*trees: Any) -> Any:
    return zip(*(jax.tree.leaves(tree) for tree in trees), strict=True)


def _identity(x: jax.Array) -> jax.Array:
    return x
