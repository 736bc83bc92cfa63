"""Transfers batches to the devices."""

from functools import cache, partial
from typing import Any

import jax

from ..data.batches import Batches
from ..models.user_batches import UserBatches
from ..program.program import Program


class Feed:
    """Puts each batch on the devices, sharded as the program expects."""

    def __init__(self, batches: Batches | UserBatches, processes: int) -> None:
        self._batches = batches
        self._processes = processes

    def batch(self, number: int, program: Program) -> Any:
        """Returns batch `number` on the devices, in the structure that the program's step takes.

        With several processes, each reads only the rows that its own devices hold. Raises Invalid if a user's batch
        cannot be made.
        """
        shardings, structure = jax.tree.flatten(program.placement.batch_shardings)
        if self._processes == 1:
            return structure.unflatten(map(jax.device_put, jax.tree.leaves(self._batches[number]), shardings))
        shapes = [array.shape for array in program.description.arrays if array.kind == "batch"]

        @cache
        def rows(begin: int, end: int) -> list[Any]:
            return jax.tree.leaves(self._batches.rows(number, range(begin, end)))

        def part(leaf: int, index: Any) -> Any:
            begin, end, _ = index[0].indices(shapes[leaf][0])
            return rows(begin, end)[leaf][:, *index[1:]]

        return structure.unflatten(
            jax.make_array_from_callback(tuple(shapes[leaf]), sharding, partial(part, leaf))
            for leaf, sharding in enumerate(shardings)
        )
