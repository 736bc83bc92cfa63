"""Kinds of memory: which values are in the host's, and what moves between it and the devices'."""

from typing import Any

from .explanation import MemoryTransfer
from .graph import CUSTOM_CALL, Graph, Operation, name_of
from .partitioned import Partitioned, tag

DEVICE = "device"
KEEPS = {
    f"stablehlo.{name}": position
    for name, position in (
        *((name, 0) for name in ("bitcast_convert", "dynamic_slice", "reshape", "slice", "transpose")),
        ("dynamic_update_slice", 1),
    )
}
"""Operations whose result is in the memory of an operand, and which one: a loop that keeps values of the host's memory
keeps all of them there."""


def spread(graph: Graph) -> None:
    """Writes the memory of every value that does not say its own, as the compiler decides it."""
    if not graph.has_memory_kinds:
        return
    before = -1
    while before != (known := sum(bool(tensor.memory) for tensor in graph.tensors)):
        before = known
        for tensor in graph.tensors:
            sources = tensor.joined
            if not sources and tensor.operation is not None:
                operation = graph.operations[tensor.operation]
                sources = [operation.operands[KEEPS[operation.name]]] if operation.name in KEEPS else []
            kinds = {graph.tensors[each].memory for each in sources} - {"", DEVICE}
            tensor.memory = tensor.memory or min(kinds, default="")
    for tensor in graph.tensors:
        tensor.memory = tensor.memory or DEVICE


def memory_transfers(program: Partitioned) -> list[MemoryTransfer]:
    """Returns the moves of values from one kind of memory to another."""
    graph, found = program.graph, list[MemoryTransfer]()
    for op, times in program.operations() if graph.has_memory_kinds else ():
        if (index := tag(op)) is not None and moves(graph, operation := graph.operations[index]):
            found.append(_transfer(program, op, operation, times))
    return found


def moves(graph: Graph, operation: Operation) -> bool:
    """Returns whether an operation moves its operand to another kind of memory: a call that names one does."""
    if operation.name != CUSTOM_CALL or len(operation.operands) != 1 or not operation.results:
        return False
    return graph.tensors[operation.operands[0]].memory != graph.tensors[operation.results[0]].memory


def moves_to_host(graph: Graph, operation: Operation) -> bool:
    return moves(graph, operation) and graph.tensors[operation.results[0]].memory != DEVICE


def _transfer(program: Partitioned, op: Any, operation: Operation, times: int | None) -> MemoryTransfer:
    before, after = (program.graph.tensors[each] for each in (operation.operands[0], operation.results[0]))
    return MemoryTransfer(
        value=name_of(program.graph, operation.operands[0]),
        before=before.memory,
        after=after.memory,
        count=times,
        bytes=program.bytes(op.results[0], program.layout(op.results[0])) * (1 if times is None else times),
        source=operation.place.source,
    )
