"""Moving the live state from one placement to another, leaf by leaf, and proving that nothing changed."""

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

Mover = Callable[[jax.Array], jax.Array]
"""A compiled identity from one sharding to another."""


class SwitchError(Exception):
    """The moved state is not the one that was there before."""


@dataclass(frozen=True)
class Moved:
    """A state under its new shardings, and the `digests` of every array before and after."""

    state: TrainState
    before: np.ndarray
    after: np.ndarray

    @property
    def digests_equal(self) -> bool:
        return np.array_equal(self.before, self.after)


@dataclass
class Movers:
    """Compiled movers, one for each (shape, dtype, from, to), kept for the next time."""

    _kept: dict[tuple[Any, ...], Mover] = field(default_factory=dict)

    def prepare(self, state: TrainState, source: TrainState, target: TrainState) -> int:
        """Compiles what moving needs and is not kept yet; says how many that were.

        `state` may be abstract; `source` and `target` hold shardings.
        """
        kept = len(self._kept)
        for leaf, here, there in _zip_leaves(state, source, target):
            if not _is_same(here, there, leaf.ndim):
                self._mover(leaf, here, there)
        return len(self._kept) - kept

    def clear(self) -> None:
        """Those that are needed again are compiled again."""
        self._kept.clear()

    def move(self, state: TrainState, target: TrainState, frees: bool = False) -> TrainState:
        """`state` under the target's shardings. The source stays as it is until its last reference goes, or, where
        this `frees`, until each leaf is moved.

        One leaf at a time: that bounds the memory, and on CPU collectives of programs that run side by side can
        wait for each other's threads for ever.
        """
        leaves, treedef = jax.tree.flatten(state)
        moved = [self._moved(leaf, there, frees) for leaf, there in zip(leaves, jax.tree.leaves(target), strict=True)]
        return treedef.unflatten(moved)

    def _moved(self, leaf: jax.Array, there: NamedSharding, frees: bool) -> jax.Array:
        if _is_same(leaf.sharding, there, leaf.ndim):
            return jax.device_put(leaf, there)  # moves nothing: the same shards under the new mesh's name
        moved = jax.block_until_ready(self._mover(leaf, leaf.sharding, there)(leaf))
        if frees:
            leaf.delete()
        return moved

    def _mover(self, leaf: Any, here: Sharding, there: NamedSharding) -> Mover:
        key = (leaf.shape, leaf.dtype, here, there)
        mover = self._kept.get(key)
        if mover is None:
            abstract = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
            self._kept[key] = mover = jax.jit(_identity, out_shardings=there).lower(abstract).compile()
        return mover


def move_state(state: TrainState, source: Program, target: Program, movers: Movers, frees: bool = False) -> Moved:
    """The same state under the target's shardings. Raises SwitchError; `state` is good either way, unless this `frees`
    its leaves."""
    before = joined(source.digest(state))
    moved = movers.move(state, target.placement.state_shardings, frees)
    for leaf, there in _zip_leaves(moved, target.placement.state_shardings):
        if leaf.sharding != there:
            raise SwitchError(f"an array {leaf.shape} came out as {leaf.sharding}, not as {there}")
    result = Moved(moved, before, joined(target.digest(moved)))
    if not result.digests_equal:
        changed = np.count_nonzero(result.before != result.after)
        raise SwitchError(f"{changed} of {before.size} arrays changed on the way")
    return result


def bytes_moved(state: TrainState, source: TrainState, target: TrainState) -> int:
    """Bytes that a device needs for the target and does not hold already, summed over devices.

    Counted from the shardings; what a collective sends on the way may be more.
    """
    return sum(
        leaf.dtype.itemsize * _elements_moved(leaf.shape, here, there)
        for leaf, here, there in _zip_leaves(state, source, target)
    )


def _elements_moved(shape: Sequence[int], here: Sharding, there: Sharding) -> int:
    held = here.devices_indices_map(tuple(shape))
    return sum(
        _volume(shape, box, box) - _volume(shape, box, held[device])
        for device, box in there.devices_indices_map(tuple(shape)).items()
    )


def _volume(shape: Sequence[int], a: Any, b: Any) -> int:
    """Elements in both of two boxes."""
    edges = ((x.indices(size), y.indices(size)) for size, x, y in zip(shape, a, b, strict=True))
    return math.prod(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x, y in edges)


def _zip_leaves(*trees: Any) -> Any:
    return zip(*(jax.tree.leaves(tree) for tree in trees), strict=True)


def _is_same(here: Sharding, there: Sharding, ndim: int) -> bool:
    return here.is_equivalent_to(there, ndim)


def _identity(x: jax.Array) -> jax.Array:
    return x
