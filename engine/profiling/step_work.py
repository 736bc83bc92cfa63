"""What a step has to do, by kind of work: from the text of its program alone."""

from collections import defaultdict
from collections.abc import Mapping

from ..analysis.execution_counts import runs
from ..analysis.hlo import Instruction, Module
from ..wire.rates import KindOfWork
from .opcodes import NO_WORK
from .program import COPIES, FUSIONS, PRODUCTS, Operation, Program

LEAST_BYTES = 256
"""Fusions and copies of fewer bytes are no work."""


def step_work(module: Module, mesh: Mapping[str, int]) -> list[KindOfWork]:
    """Returns the work of a step on one device, by kind. `mesh`: axis to size.

    What runs an unknown number of times, because that depends on data, is left out.
    """
    work = StepWork(Program(module, mesh, module.partitions, set()))
    return work.by_kind()


class StepWork:
    """The work of one program."""

    def __init__(self, program: Program) -> None:
        self._program, self._module = program, program.module
        self._applied = {name for _, each in self._module.instructions() if (name := _applied(each))}

    def by_kind(self) -> list[KindOfWork]:
        """Returns the sums over the operations of a step, by kind."""
        count, amount, times = defaultdict[str, float](float), defaultdict[str, float](float), runs(self._module)
        for where, each in self._module.instructions():
            operation, ran = self._program.operations.get(each.name), times[where.name]
            if operation is None or not ran or each.opcode in NO_WORK or where.name in self._applied:
                continue
            if operation.is_container or not operation.is_begin:
                continue
            kind, each_amount = self._kind(operation), self._amount(operation, ran)
            if not is_small(kind, each_amount):
                count[kind] += ran
                amount[kind] += ran * each_amount
        return [KindOfWork(kind, count[kind], amount[kind]) for kind in sorted(count)]

    def _kind(self, operation: Operation) -> str:
        collective = self._program.collectives.get(operation.collective)
        return collective.kind if collective else operation.part

    def _amount(self, operation: Operation, ran: int) -> float:
        """FLOPs or bytes each time it runs; 0 if unknown."""
        if operation.collective:
            return (self._program.sent(operation.name) or 0.0) / ran
        work = self._program.work(operation.name)
        return (work.flops if operation.part == PRODUCTS else work.bytes) or 0.0


def is_small(kind: str, amount: float) -> bool:
    """Returns whether an operation only counts or compares: loops of these are one operation to some compilers.

    `amount`: each time it runs.
    """
    return kind in (FUSIONS, COPIES) and amount < LEAST_BYTES


def _applied(each: Instruction) -> str:
    """The computation that an instruction applies to elements, whose instructions are no operations."""
    return "" if each.opcode == "call" else each.attribute(r"\bto_apply=%?([\w.\-]+)") or ""
