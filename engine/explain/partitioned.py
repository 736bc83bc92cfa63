"""A program after Shardy's passes: the part of each value on one device."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from .attributes import axes_in, axes_of_argument, axes_of_dims, owner_of, rule_of, shardings, walked
from .graph import RETURN, SHARD_MAP, Axis, Graph, Rule, bytes_of
from .lookups import batch_lookups
from .passes import CALLS, finish_propagation, insert_collectives, propagate
from .reader import TAG, given, read
from .trip_counts import trip_count

INSERTED = {
    "sdy.all_reduce": ("all-reduce", "reduction_axes"),
    "sdy.all_gather": ("all-gather", "gathering_axes"),
    "sdy.reduce_scatter": ("reduce-scatter", "reduce_scatter_axes"),
    "sdy.all_to_all": ("all-to-all", "params"),
    "sdy.collective_permute": ("collective-permute", ""),
    "sdy.all_slice": ("", ""),
}
"""Shardy's collectives to their kind and the attribute with their axes. A slice moves nothing."""
RESHARD = "sdy.reshard"
SUMS = ("sdy.all_reduce", "sdy.reduce_scatter")


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A module with the collectives that the passes insert; its operations have the tags that `reader.read` gave."""

    module: Any
    graph: Graph
    _layouts: dict[Any, list[list[Axis]]] = field(default_factory=dict[Any, list[list[Axis]]], init=False)
    _rules: dict[Any, Rule] = field(default_factory=dict[Any, Rule], init=False)
    _itemsizes: dict[Any, int] = field(default_factory=dict[Any, int], init=False)

    @cached_property
    def _functions(self) -> ir.SymbolTable:
        return ir.SymbolTable(self.module.operation)

    @property
    def listed_mesh(self) -> dict[str, int]:
        """Sizes of the mesh whose devices the program lists by number."""
        return self.graph.mesh

    @property
    def main(self) -> Any:
        return self._functions["main"].regions[0].blocks[0]

    def called(self, op: Any) -> Any:
        return self._functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value].regions[0].blocks[0]

    def operations(self) -> Iterator[tuple[Any, int | None]]:
        """Yields what a device executes, each operation with its executions per step; None if they depend on data."""
        return self._in_block(self.main, 1)

    def _in_block(self, block: Any, times: int | None) -> Iterator[tuple[Any, int | None]]:
        for operation in block.operations:
            op = operation.operation
            if op.name in CALLS:
                yield from self._in_block(self.called(op), times)
            elif op.name == "stablehlo.while":
                trips = trip_count(op)
                for region, runs in zip(op.regions, (1, 0), strict=True):  # the condition is tested once more
                    known = None if times is None or trips is None else times * (trips + runs)
                    yield from self._in_block(region.blocks[0], known)
            elif op.name in ("stablehlo.case", "stablehlo.if"):
                for region in op.regions:
                    yield from self._in_block(region.blocks[0], None)
            elif op.name in (SHARD_MAP, "sdy.named_computation"):
                yield from self._in_block(op.regions[0].blocks[0], times)
            else:
                yield op, times

    @cached_property
    def _call_of(self) -> dict[str, Any]:
        """The call of each function that is called once."""
        found: dict[str, list[Any]] = {}
        for op in walked(self.module, *CALLS):
            found.setdefault(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, []).append(op)
        return {name: calls[0] for name, calls in found.items() if len(calls) == 1}

    def call_of(self, function: Any) -> Any:
        """Returns the call of a function that is called once; None for other functions and operations."""
        is_function = function.name == "func.func"
        return self._call_of.get(ir.StringAttr(function.attributes["sym_name"]).value) if is_function else None

    def is_in_shard_map(self, block: Any) -> bool:
        """Whether the shapes of a block's values are those of a device."""
        while (parent := block.owner.operation).name != SHARD_MAP:
            parent = self.call_of(parent) or parent
            if parent.name == "func.func":
                return False
            block = parent.block
        return True

    def source(self, value: Any) -> Any:
        """Returns a value before the passes move it, and before a function that is called once takes it."""
        while True:
            if is_inserted(value):
                value = value.owner.operation.operands[0]
                continue
            function = value.owner.owner.operation if isinstance(value.owner, ir.Block) else None
            if function is None or (call := self.call_of(function)) is None:
                return value
            value = call.operands[ir.BlockArgument(value).arg_number]

    def is_gathered(self, value: Any) -> bool:
        """Whether the passes move a value that is split."""
        return self.is_moved(value) and any(self.layout(self.source(value)))

    def is_moved(self, value: Any) -> bool:
        return self.layout(self.source(value)) != self.layout(value)

    def is_reduced(self, op: Any, axes: Sequence[Axis]) -> bool:
        """Whether the passes sum the results of an operation over these axes, now or where they are taken."""
        users = [use.owner.operation for value in op.results for use in value.uses]
        sums = [user.attributes[INSERTED[user.name][1]] for user in users if user.name in SUMS]
        tensors = (self.tensor_of(value) for value in op.results)
        is_left_open = any(each is not None and self.graph.tensors[each].unreduced for each in tensors)
        return not users or is_left_open or set(axes) <= {axis for each in sums for axis in axes_in(each)}

    def taker(self, op: Any) -> tuple[Any, int]:
        """Returns the operation that takes what a collective moves, and as which operand; None if several do."""
        value = op.results[0]
        while len(uses := list(value.uses)) == 1:
            op, position = uses[0].owner.operation, uses[0].operand_number
            if op.name in INSERTED:
                value = op.results[0]
            elif op.name in CALLS:
                value = self.called(op).arguments[position]
            else:
                return op, position
        return None, 0

    def takers(self, value: Any) -> Iterator[Any]:
        """Yields the operations that take a value, also in functions that are called with it, where a function that is
        called once returns it, and after a reshard (jax 0.12)."""
        for use in value.uses:
            op = use.owner.operation
            if op.name in CALLS:
                yield from self.takers(self.called(op).arguments[use.operand_number])
            elif op.name == RESHARD:
                yield from self.takers(op.results[0])
            elif op.name == RETURN and (call := self.call_of(op.parent)) is not None:
                yield from self.takers(call.results[use.operand_number])
            else:
                yield op

    def rule(self, op: Any) -> Rule | None:
        return rule_of(op, self._rules)

    def is_elementwise(self, op: Any) -> bool:
        """Whether each element of the result is computed from those in the same place of two or more operands."""
        rule = self.rule(op)
        if rule is None or rule.summed or len(op.results) != 1:
            return False
        arrays = [factors for factors in rule.operands if factors]
        return len(arrays) > 1 and all(factors == rule.results[0] for factors in arrays)

    def layout(self, value: Any) -> list[list[Axis]]:
        """Returns the mesh axes of each dim of a value, also if the passes changed what the operation computes."""
        if value not in self._layouts:
            self._layouts[value] = self._layout(value)
        return self._layouts[value]

    def _layout(self, value: Any) -> list[list[Axis]]:
        rank = len(shape_of(value))
        if (op := owner_of(value)) is not None:
            if op.name in INSERTED:
                return axes_of_dims(op.attributes["out_sharding"], rank)
            if (sharding := shardings(op)[list(op.results).index(value)]) is not None:
                return axes_of_dims(sharding, rank)
        elif value.owner.owner.operation.name == SHARD_MAP:
            position = ir.BlockArgument(value).arg_number
            return axes_of_argument(value.owner.owner.operation, position, rank, is_manual=False)
        tensor = self.tensor_of(value)
        return self.graph.tensors[tensor].axes if tensor is not None else [[] for _ in range(rank)]

    def is_alone(self, value: Any) -> bool:
        """Whether only one device has a value."""
        tensor = self.tensor_of(value)
        return tensor is not None and self.graph.tensors[tensor].device is not None

    def part(self, value: Any, layout: list[list[Axis]]) -> list[int]:
        counts = map(self.graph.parts, layout)
        return [-(-size // count) for size, count in zip(shape_of(value), counts, strict=True)]

    def bytes(self, value: Any, layout: list[list[Axis]]) -> int:
        return math.prod(self.part(value, layout)) * self.itemsize(value)

    def itemsize(self, value: Any) -> int:
        if value not in self._itemsizes:
            self._itemsizes[value] = bytes_of(str(ir.RankedTensorType(value.type).element_type))
        return self._itemsizes[value]

    def tensor_of(self, value: Any) -> int | None:
        """Returns the tensor of the graph that a value is, also after collectives; None if it is none."""
        while (op := owner_of(value)) is not None:
            if op.name not in INSERTED:
                index = tag(op)
                position = next(number for number, result in enumerate(op.results) if result == value)
                return None if index is None else self.graph.operations[index].results[position]
            value = op.operands[0]
        parent, position = value.owner.owner.operation, ir.BlockArgument(value).arg_number
        if parent.name == "func.func":
            is_main = ir.StringAttr(parent.attributes["sym_name"]).value == "main"
            return self.graph.arguments[position] if is_main else self._as_used(value)
        index = tag(parent)
        if index is None:
            return None
        found = self.graph.operations[index]
        return (found.results if parent.name == "stablehlo.while" else found.operands)[position]

    def _as_used(self, value: Any) -> int | None:
        consumer, position = self.consumer(value)
        return None if consumer is None else self.graph.operations[consumer].operands[position]

    def consumer(self, value: Any) -> tuple[int | None, int]:
        """Returns the operation that takes a value, also after further collectives, and as which operand."""
        waiting = [value]
        while waiting:
            for use in waiting.pop().uses:
                op = use.owner.operation
                if op.name in INSERTED:
                    waiting.append(op.results[0])
                elif (index := tag(op)) is not None:
                    return index, use.operand_number
        return None, 0


def partition(module: Any, records: bool = False) -> Partitioned:
    """Runs Shardy's passes on a copy of a module. Raises UserError if they fail. `records`: origins of mesh axes."""
    with module.context:
        propagated = module.operation.clone()
        asked = given(propagated)
        propagate(propagated, records)
        graph = read(propagated, asked)
        transformed = propagated.clone()
        batch_lookups(transformed)
        finish_propagation(transformed)
        _align_operands(Partitioned(transformed, graph))
        insert_collectives(transformed)
        return Partitioned(transformed, graph)


def _align_operands(program: Partitioned) -> None:
    """Moves the operands of element-wise operations to the layout of the result, as XLA's partitioner does
    (`SpmdPartitioningVisitor::HandleElementwise`). The passes would take the layout of most operands and move the
    result."""
    for op in list(walked(program.module)):
        if not program.is_elementwise(op) or program.is_in_shard_map(op.block) or (to := shardings(op)[0]) is None:
            continue
        for index, value in enumerate(op.operands):
            if shape_of(value) and program.layout(value) != program.layout(op.results[0]):
                op.operands[index] = sdy.reshard(value, to, loc=op.location, ip=ir.InsertionPoint(op))


def is_inserted(value: Any) -> bool:
    op = owner_of(value)
    return op is not None and op.name in INSERTED


def shape_of(value: Any) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def tag(op: Any) -> int | None:
    """Returns the index of an operation in the graph; None if a pass has made it."""
    return ir.IntegerAttr(op.attributes[TAG]).value if TAG in op.attributes else None
