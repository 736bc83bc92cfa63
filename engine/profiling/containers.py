"""Calls and loops of a program: their time is that of the operations in them, unless a trace has them as one event."""

import re
from collections.abc import Iterator
from functools import cached_property

from ..analysis.execution_counts import runs
from ..analysis.hlo import Computation, Instruction, Module
from ..analysis.work import Work, Works
from .opcodes import CONTAINERS, NO_WORK

CALLED = re.compile(r"\b(?:to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")


class Containers:
    """The containers of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def inside(self, each: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """Yields all instructions that a container runs, also in other containers, with their computations."""
        seen, pending = set[str](), CALLED.findall(each.rest)
        while pending:
            name = pending.pop()
            if name in seen or not (where := self._module.computations.get(name)):
                continue
            seen.add(name)
            for inner in where.instructions.values():
                yield where, inner
                pending += CALLED.findall(inner.rest) if inner.opcode in CONTAINERS else ()

    def work(self, where: Computation, each: Instruction, works: Works) -> Work:
        """Returns the work of a container in the computation `where` each time it runs; unknown if that is."""
        times = self._times[where.name]
        flops, moved = 0.0, 0.0
        for place, inner in self.inside(each):
            ran = self._times[place.name]
            if ran is None or not times:
                return Work(None, None)
            if inner.opcode not in CONTAINERS | NO_WORK:
                found = works.of(place, inner)
                flops += (found.flops or 0.0) * ran / times
                moved += (found.bytes or 0.0) * ran / times
        return Work(flops or None, round(moved))

    @cached_property
    def _times(self) -> dict[str, int | None]:
        return runs(self._module)
