"""A partitioned program as it is for other sizes of its mesh axes and another batch, without a trace of its own.

The passes lay a program out by axes, not by their sizes, as long as they split the same dims. So a step that was traced
on a small mesh says what each device holds and sends on any mesh of the same axes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from .attributes import axes_of_argument, owner_of
from .graph import SHARD_MAP, Axis, Graph
from .partitioned import Partitioned, shape_of

Split = tuple[list[Axis], list[Axis]]
"""The axes that split dims of the batch, and those that split others."""


class Batch(NamedTuple):
    """How values grow with the batch: those whose elements are a multiple of `prime`, which no other dim is."""

    prime: int
    growth: Fraction


@dataclass(frozen=True, eq=False)
class Resized(Partitioned):
    """`graph` has the new sizes of the mesh axes."""

    traced: Graph
    """With the sizes of the trace."""
    batch: Batch
    _inside: dict[Any, Split] = field(default_factory=dict[Any, Split], init=False)

    @property
    def listed_mesh(self) -> dict[str, int]:
        return self.traced.mesh

    def part(self, value: Any, layout: list[list[Axis]]) -> list[int]:
        dims = [-(-size // self.traced.parts(axes)) for size, axes in zip(shape_of(value), layout, strict=True)]
        grown = next((dim for dim, size in enumerate(dims) if size % self.batch.prime == 0 and size), None)
        split = [
            dim
            if index == grown or self._counts_shards(size, axes)
            else -(-dim * self.traced.parts(axes) // self.graph.parts(axes))
            for index, (dim, size, axes) in enumerate(zip(dims, shape_of(value), layout, strict=True))
        ]
        if grown is not None:
            rest = math.prod(size for index, size in enumerate(split) if index != grown)
            split[grown] = -(-self._elements(value, layout) // rest) if rest else 0
        return split

    def bytes(self, value: Any, layout: list[list[Axis]]) -> int:
        return self._elements(value, layout) * self.itemsize(value)

    def _elements(self, value: Any, layout: list[list[Axis]]) -> int:
        shape, inside = shape_of(value), self._axes_inside(value)
        elements, split, was_split = math.prod(shape), self.graph.parts(inside), self.traced.parts(inside)
        if self._grows(shape):
            was_split *= self.batch.growth.numerator
            split *= self.batch.growth.denominator
        else:
            for size, axes in zip(shape, layout, strict=True):
                if self._counts_shards(size, axes):
                    elements = elements // size * self.graph.parts(axes)
        for axes in layout:
            split *= self.graph.parts(axes)
        return -(-elements * was_split // split)

    def _counts_shards(self, size: int, axes: list[Axis]) -> bool:
        """Whether a dim has one element for each shard, as one that the step adds to group values by shards has."""
        return bool(axes) and size == self.traced.parts(axes)

    def _axes_inside(self, value: Any) -> list[Axis]:
        """Returns the axes along which a `shard_map`'s value, whose shape is a device's, is a part."""
        of_batch, others = self._split_inside(value)
        return [*of_batch, *others] if self._grows(shape_of(value)) else others

    def _grows(self, shape: list[int]) -> bool:
        return math.prod(shape) % self.batch.prime == 0

    def _split_inside(self, value: Any) -> Split:
        """As the largest of the values is from which it is computed, from the argument of the `shard_map` on."""
        path = [value]
        while path[-1] not in self._inside and (source := self._largest_source(path[-1])) is not None:
            path.append(source)
        found = self._inside.get(path[-1]) or self._split_first(path[-1])
        self._inside.update(dict.fromkeys(path, found))
        return found

    def _largest_source(self, value: Any) -> Any:
        """The largest operand of what computes a value, or what a loop or a call is given as this argument."""
        if (op := owner_of(value)) is not None:
            values = () if op.name == SHARD_MAP else op.operands
            tensors = (each for each in values if isinstance(each.type, ir.RankedTensorType))
            return max(tensors, key=lambda each: math.prod(shape_of(each)), default=None)
        parent = value.owner.owner.operation
        taker = parent if parent.name == "stablehlo.while" else self.call_of(parent)
        return None if taker is None else taker.operands[ir.BlockArgument(value).arg_number]

    def _split_first(self, value: Any) -> Split:
        """Of a value without a source."""
        if owner_of(value) is not None or (parent := value.owner.owner.operation).name != SHARD_MAP:
            return [], []
        manual = axes_of_argument(parent, ir.BlockArgument(value).arg_number, value.type.rank, is_manual=True)
        dims = list(zip(shape_of(value), manual, strict=True))
        of_batch = [axis for size, axes in dims if self._grows([size]) for axis in axes]
        return of_batch, [axis for size, axes in dims if not self._grows([size]) for axis in axes]


def resized(program: Partitioned, sizes: Mapping[str, int], batch: Batch) -> Resized:
    """`program`: as traced; it shares what it knows of its values."""
    found = Resized(program.module, replace(program.graph, mesh=dict(sizes)), program.graph, batch)
    vars(found).update({name: value for name, value in vars(program).items() if name.startswith("_")})
    return found
