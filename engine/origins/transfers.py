"""The collectives that Shardy's passes insert into a program, with their bytes."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from ..analysis.device_groups import axes_of
from .graph import Axis, Graph
from .locations import Places
from .loops import trip_count
from .reader import TAG
from .shardings import axes_in, axes_of_dims, part_of_argument, shardings

KINDS = {
    "sdy.all_reduce": ("all-reduce", "reduction_axes"),
    "sdy.all_gather": ("all-gather", "gathering_axes"),
    "sdy.reduce_scatter": ("reduce-scatter", "reduce_scatter_axes"),
    "sdy.all_to_all": ("all-to-all", "params"),
    "sdy.collective_permute": ("collective-permute", ""),
    "sdy.all_slice": ("", ""),
}
"""Shardy's collectives to their kind and the attribute with their axes. A slice moves nothing."""
WRITTEN = {
    f"stablehlo.{kind}": kind.replace("_", "-")
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")
}
"""Collectives that the code calls in a `shard_map`."""
BITS = re.compile(r"\d+")
NAMED = re.compile(r'axis_ref<name = "([^"]+)"')
ROW = re.compile(r"\[([\d, ]+)\]")
GROUPS = ("replica_groups", "source_target_pairs")


@dataclass(frozen=True)
class Transfer:
    """One collective."""

    kind: str
    axes: list[Axis]
    count: int | None
    """Executions per step; None if that depends on data."""
    bytes_each: int
    """Bytes of one execution on one device."""
    source: str
    """Its own `file:line`; empty if the passes give it none."""
    moved: int | None
    """The tensor that it moves, in the graph."""
    producer: int | None
    """The operation that computes the tensor."""
    consumer: int | None
    """The operation that needs it, in the graph; None for a result of the program."""
    position: int
    """Which of the consumer's operands it is."""
    before: list[list[Axis]]
    """For each dim the mesh axes that split the tensor; empty if the code calls it."""
    after: list[list[Axis]]
    """For each dim the mesh axes that split the result; empty if the code calls it."""
    written: bool
    """Whether the code calls it."""


class Reader:
    """Reads the collectives of one module, whose operations have the tags that `reader.read` gave them."""

    def __init__(self, module: Any, graph: Graph) -> None:
        self._graph, self._places = graph, Places()
        self._moves: dict[tuple[Any, str, str], Any] = {}
        """Value, operation and sharding of each collective to its result."""
        self._first: dict[Any, Any] = {}
        """The result of a collective to that of the first like it."""
        top = (op.operation for op in module.regions[0].blocks[0].operations)
        self._functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in top if op.name == "func.func"}

    def read(self) -> Iterator[Transfer]:
        """Yields the collectives in the order of the program."""
        yield from self._in_block(self._functions["main"].regions[0].blocks[0], 1)

    def _in_block(self, block: Any, times: int | None) -> Iterator[Transfer]:
        for operation in block.operations:
            op = operation.operation
            if op.name in KINDS:
                if KINDS[op.name][0] and not self._is_repeated(op):
                    yield self._inserted(op, times)
            elif op.name in WRITTEN:
                yield self._called(op, times)
            elif op.name in ("func.call", "call"):
                called = self._functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
                yield from self._in_block(called.regions[0].blocks[0], times)
            elif op.name == "stablehlo.while":
                trips = trip_count(op)
                for region, runs in zip(op.regions, (1, 0), strict=True):  # the condition is tested once more
                    known = None if times is None or trips is None else times * (trips + runs)
                    yield from self._in_block(region.blocks[0], known)
            elif op.name in ("stablehlo.case", "stablehlo.if"):
                for region in op.regions:
                    yield from self._in_block(region.blocks[0], None)
            elif op.name == "sdy.manual_computation":
                yield from self._in_block(op.regions[0].blocks[0], times)

    def _is_repeated(self, op: Any) -> bool:
        """Whether another collective has moved the same value alike: the compiler merges the two."""
        value = self._first.get(op.operands[0], op.operands[0])
        key = value, op.name, str(op.attributes["out_sharding"])
        first = self._moves.setdefault(key, op.results[0])
        self._first[op.results[0]] = first
        return first != op.results[0]

    def _inserted(self, op: Any, times: int | None) -> Transfer:
        kind, attribute = KINDS[op.name]
        value = op.operands[0]
        after = self._layout(op.results[0])
        axes = axes_in(op.attributes[attribute]) if attribute else self._changed(op)
        local = self._bytes(value, after)
        each = local * self._graph.parts(axes) if kind == "reduce-scatter" else local
        consumer, position = self._consumer(op.results[0])
        moved = self._moved(value)
        return Transfer(
            kind=kind,
            axes=axes,
            count=times,
            bytes_each=each,
            source=self._places.of(op.location).source,
            moved=moved,
            producer=None if moved is None else self._graph.tensors[moved].operation,
            consumer=consumer,
            position=position,
            before=self._layout(value),
            after=after,
            written=False,
        )

    def _called(self, op: Any, times: int | None) -> Transfer:
        groups = next((str(op.attributes[name]) for name in GROUPS if name in op.attributes), "")
        consumer, position = self._consumer(op.results[0])
        value = op.results[0] if op.name == "stablehlo.all_gather" else op.operands[0]
        return Transfer(
            kind=WRITTEN[op.name],
            axes=self._axes_of_groups(groups),
            count=times,
            bytes_each=self._bytes(value, self._layout(value)),
            source=self._places.of(op.location).source,
            moved=self._moved(op.operands[0]),
            producer=_tag(op),
            consumer=consumer,
            position=position,
            before=[],
            after=[],
            written=True,
        )

    def _axes_of_groups(self, text: str) -> list[Axis]:
        """The mesh axes of `replica_groups`: axes by name, or lists of devices."""
        if named := NAMED.findall(text):
            return named
        groups = [tuple(map(int, row.split(","))) for row in ROW.findall(text)]
        return axes_of(groups, self._graph.mesh)

    def _changed(self, op: Any) -> list[Axis]:
        """The axes of a permutation: those that split another dim before than after."""
        sides = zip(self._layout(op.operands[0]), self._layout(op.results[0]), strict=True)
        changed = (axis for a, b in sides if a != b for axis in (*a, *b))
        return list(dict.fromkeys(changed))

    def _layout(self, value: Any) -> list[list[Axis]]:
        """The mesh axes of each dim of a value, also if the passes changed what the operation computes."""
        rank = len(ir.RankedTensorType(value.type).shape)
        if not isinstance(value.owner, ir.Block):
            op = value.owner.operation
            if op.name in KINDS:
                return axes_of_dims(op.attributes["out_sharding"], rank)
            if (sharding := shardings(op)[list(op.results).index(value)]) is not None:
                return axes_of_dims(sharding, rank)
        elif value.owner.owner.operation.name == "sdy.manual_computation":
            return part_of_argument(value.owner.owner.operation, ir.BlockArgument(value).arg_number, rank)
        moved = self._moved(value)
        return self._graph.tensors[moved].axes if moved is not None else [[] for _ in range(rank)]

    def _bytes(self, value: Any, layout: list[list[Axis]]) -> int:
        """The bytes of one device's part of a value in this layout."""
        tensor = ir.RankedTensorType(value.type)
        parts = map(self._graph.parts, layout)
        elements = math.prod(-(-size // count) for size, count in zip(tensor.shape, parts, strict=True))
        return elements * bytes_of(str(tensor.element_type))

    def _moved(self, value: Any) -> int | None:
        """The tensor of the graph that a value is, also after collectives."""
        while not isinstance(value.owner, ir.Block):
            op = value.owner.operation
            if op.name not in KINDS:
                index = _tag(op)
                position = next(number for number, result in enumerate(op.results) if result == value)
                return None if index is None else self._graph.operations[index].results[position]
            value = op.operands[0]
        parent, position = value.owner.owner.operation, ir.BlockArgument(value).arg_number
        if parent.name == "func.func":
            is_main = ir.StringAttr(parent.attributes["sym_name"]).value == "main"
            return self._graph.arguments[position] if is_main else self._as_used(value)
        index = _tag(parent)
        if index is None:
            return None
        found = self._graph.operations[index]
        return (found.results if parent.name == "stablehlo.while" else found.operands)[position]

    def _as_used(self, value: Any) -> int | None:
        """The tensor of a function's argument, as an operation of the function knows it."""
        consumer, position = self._consumer(value)
        return None if consumer is None else self._graph.operations[consumer].operands[position]

    def _consumer(self, value: Any) -> tuple[int | None, int]:
        """The operation that takes a value, also after further collectives, and as which operand."""
        waiting = [value]
        while waiting:
            for use in waiting.pop().uses:
                op = use.owner.operation
                if op.name in KINDS:
                    waiting.append(op.results[0])
                elif (index := _tag(op)) is not None:
                    return index, use.operand_number
        return None, 0


def bytes_of(dtype: str) -> int:
    """Returns the bytes of an element of a StableHLO type: `f32`, `bf16`, `i1`, `complex<f32>`."""
    found = BITS.search(dtype)
    bits = int(found[0]) if found else 8
    return max(1, bits // 8) * (2 if dtype.startswith("complex") else 1)


def _tag(op: Any) -> int | None:
    return ir.IntegerAttr(op.attributes[TAG]).value if TAG in op.attributes else None
