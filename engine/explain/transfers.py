"""The collectives of a partitioned program, with their bytes: inserted by Shardy's passes, called by the code, or left
to XLA's partitioner."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir

from ..hlo.device_groups import axes_of
from .attributes import axes_in, owner_of
from .exchanges import RAGGED_EXCHANGE, exchanges, target
from .explanation import UNKNOWN
from .graph import CUSTOM_CALL, Axis, Places
from .partitioned import INSERTED, Partitioned, tag
from .reductions import GATHER, ORDERS, REDUCE, TRANSPOSE, Reductions
from .reshards import Exchange, inserted
from .top_k import chosen_first

WRITTEN = {
    f"stablehlo.{kind}": kind.replace("_", "-")
    for kind in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "collective_permute",
        "collective_broadcast",
    )
}
NAMED = re.compile(r'axis_ref<name = "([^"]+)"')
ROW = re.compile(r"\[([\d, ]+)\]")
GROUPS = ("replica_groups", "source_target_pairs", "backend_config")


@dataclass(frozen=True)
class Transfer:
    kind: str
    axes: list[Axis]
    count: int | None
    """Executions per step; None if they depend on data."""
    bytes_each: int
    """On one device."""
    source: str
    moved: int | None
    producer: int | None
    consumer: int | None
    position: int = 0
    before: Sequence[list[Axis]] = ()
    """For each dim the mesh axes that split the tensor, and `after` the result; empty unless the passes insert it."""
    after: Sequence[list[Axis]] = ()
    written: bool = False
    """Whether the code calls it."""
    kept: Sequence[Axis] = ()
    """The axes over which each device takes only its own part of an all-reduced sum."""
    why: str = ""
    """Why an operation needs it by itself; empty if the passes insert it or the code calls it."""


Executed = Iterable[tuple[Any, int | None]]
"""Operations with their executions per step; None if they depend on data."""


def read_transfers(
    program: Partitioned, reductions: Reductions | None = None, among: Executed | None = None
) -> Iterator[Transfer]:
    """`reductions`: of the compiler, in place of those that the passes insert. `among`: the program's operations that
    are `moving`, if they are known."""
    yield from _TransferReader(program, reductions).found(program.operations() if among is None else among)


def moving(program: Partitioned) -> list[tuple[Any, int | None]]:
    """Returns the operations with transfers, of a program that `resized` gives other sizes."""
    reader = _TransferReader(program, None)
    with program.module.context:
        return [each for each in program.operations() if each[0].name in INSERTED or any(reader.found([each]))]


class _TransferReader:
    def __init__(self, program: Partitioned, reductions: Reductions | None) -> None:
        self._program, self._graph, self._places = program, program.graph, Places()
        self._reductions = reductions
        self._moves: dict[tuple[Any, ...], Any] = {}
        self._first: dict[Any, Any] = {}
        """The result of a collective to the result of the first like it."""

    def found(self, operations: Executed) -> Iterator[Transfer]:
        for op, times in operations:
            if op.name in INSERTED:
                if INSERTED[op.name][0] and not self._is_repeated(op):
                    yield from self._inserted(op, times)
            elif op.name in WRITTEN:
                yield self._called(op, WRITTEN[op.name], times)
            elif op.name == CUSTOM_CALL and target(op) == RAGGED_EXCHANGE:
                yield self._called(op, RAGGED_EXCHANGE.replace("_", "-"), times)
            else:
                for each in exchanges(self._program, op):
                    found = self._reductions.exchanged(op, each) if self._reductions else each
                    yield self._exchanged(op, found, times)

    def _is_repeated(self, op: Any) -> bool:
        """Whether another collective has moved the same value alike: the compiler merges the two. The TPU's also
        merges the gathers of a value and of its transpose."""
        value = self._first.get(op.operands[0], op.operands[0])
        layout, types = self._program.layout(op.results[0]), {str(value.type.element_type): None}
        in_any_order = op.name == GATHER and self._reductions is not None and self._reductions.is_tpu
        while in_any_order and (maker := owner_of(value)) is not None and maker.name in ORDERS:
            value = maker.operands[0]
            types[str(value.type.element_type)] = None
            if maker.name == TRANSPOSE:
                order = ir.DenseI64ArrayAttr(maker.attributes["permutation"])
                layout = [axes for _, axes in sorted(zip(order, layout, strict=True))]
        first = self._moves.setdefault((value, op.name, str(layout), *types), op.results[0])
        self._first[op.results[0]] = first
        return first != op.results[0]

    def _inserted(self, op: Any, times: int | None) -> Iterator[Transfer]:
        reductions = self._reductions
        if reductions and op.name == GATHER and reductions.is_unneeded(op):
            return
        kind, attribute = INSERTED[op.name]
        value = op.operands[0]
        before, after = self._program.layout(value), self._program.layout(op.results[0])
        axes = axes_in(op.attributes[attribute]) if attribute else self._changed(op)
        local = self._program.bytes(value, after)
        size = local * self._graph.parts(axes) if op.name == "sdy.reduce_scatter" else local
        consumer, position = self._program.consumer(op.results[0])
        moved = self._program.tensor_of(value)
        found = Transfer(
            kind=kind,
            axes=axes,
            count=times,
            bytes_each=size,
            source=self._places.of(op.location).source,
            moved=moved,
            producer=None if moved is None else self._graph.tensors[moved].operation,
            consumer=consumer,
            position=position,
            before=before,
            after=after,
            kept=Reductions(self._program, None).kept(op) if op.name == REDUCE and not reductions else (),
        )
        exchange = Exchange(kind, axes, size, "")
        made = chosen_first(self._program, op) if reductions and reductions.chooses_first else None
        if made is None:
            made = (
                reductions.of(op, exchange)
                if reductions and op.name == REDUCE
                else inserted(self._program, op, exchange)
            )
        for each in made:
            for part in reductions.moved(op, each) if reductions else [each]:
                if part.bytes or part.kind == UNKNOWN:
                    yield replace(found, kind=part.kind, axes=part.axes, bytes_each=part.bytes, why=part.why)

    def _exchanged(self, op: Any, found: Exchange, times: int | None) -> Transfer:
        index = tag(op)
        return Transfer(
            kind=found.kind,
            axes=found.axes,
            count=times,
            bytes_each=found.bytes,
            source="" if index is None else self._graph.operations[index].place.source,
            moved=self._program.tensor_of(op.operands[0]) if op.operands else None,
            producer=index,
            consumer=index,
            why=found.why,
        )

    def _called(self, op: Any, kind: str, times: int | None) -> Transfer:
        groups = next((str(op.attributes[name]) for name in GROUPS if name in op.attributes), "")
        consumer, position = self._program.consumer(op.results[0])
        value = op.results[0] if op.name == "stablehlo.all_gather" else op.operands[0]
        return Transfer(
            kind=kind,
            axes=self._axes_of_groups(groups),
            count=times,
            bytes_each=self._program.bytes(value, self._program.layout(value)),
            source=self._places.of(op.location).source,
            moved=self._program.tensor_of(op.operands[0]),
            producer=tag(op),
            consumer=consumer,
            position=position,
            written=True,
        )

    def _axes_of_groups(self, text: str) -> list[Axis]:
        """The mesh axes of `replica_groups`: axes by name, or lists of devices."""
        if named := NAMED.findall(text):
            return named
        groups = [tuple(map(int, row.split(","))) for row in ROW.findall(text)]
        return axes_of(groups, self._program.listed_mesh)

    def _changed(self, op: Any) -> list[Axis]:
        """The axes of a permutation: they split another dim before than after."""
        sides = zip(self._program.layout(op.operands[0]), self._program.layout(op.results[0]), strict=True)
        changed = (axis for a, b in sides if a != b for axis in (*a, *b))
        return list(dict.fromkeys(changed))
