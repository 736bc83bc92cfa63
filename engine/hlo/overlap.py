"""Collectives that run while the device computes, read from the order of the instructions in a scheduled module.

An asynchronous collective is started by one instruction, and another waits for its end. It is overlapped if there is
computation between the two: a fusion, a matrix product, a kernel, or a loop with one of these. A transfer to other TPU
slices runs from its `recv` to the end of that. How long the collective and the computation take is not in the text.
"""

from collections.abc import Sequence

from . import megascale
from .collective_forms import is_permute
from .dataflow import is_product
from .module import APPLIED, BODY, CALLS, Computation, Instruction, Module

TARGET = r'\bcustom_call_target="([^"]*)"'
START, DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
"""The custom calls in the two fusions that start and end an asynchronous collective on TPU. Fusions of computation
between these also have the collective, to continue it."""
NO_KERNELS = {START, DONE, "AllocateBuffer", "ConcatBitcast", "GatherScatterIndicesBitpacked", "Sharding"}
"""Targets of custom calls that compute nothing."""

Found = tuple[Computation, Instruction]
"""A collective and the computation that it is in."""
Value = tuple[str, str]
"""The names of a computation and of a collective in it; empty for all collectives in it."""


class Schedule:
    """When the asynchronous collectives of a module start and end."""

    def __init__(self, module: Module, collectives: Sequence[Found]) -> None:
        """`collectives`: all of the module, without the instructions that end them."""
        self._module = module
        callees = {each.attribute(CALLS) for _, each in module.instructions() if each.opcode == "fusion"}
        fused = [(where, each) for where, each in collectives if where.name in callees]
        self._targets = {where.name: _targets(where) for where in {where.name: where for where, _ in fused}.values()}
        """Targets of the custom calls in each fused computation that has a collective."""
        self._channels = {where.name: _channel(each) for where, each in fused}
        self._started = {_channel(each) for where, each in fused if START in self._targets[where.name]} - {None}

    def is_repeated(self, where: Computation, instruction: Instruction) -> bool:
        """Returns whether a collective only continues or ends one that another fusion starts, perhaps within a loop."""
        targets = self._targets.get(where.name)
        return targets is not None and START not in targets and _channel(instruction) in self._started

    def begins(self) -> dict[str, str]:
        """Returns each instruction that continues or ends an asynchronous one, with the name of that."""
        fusions = [(each.name, fused) for _, each in self._module.instructions() if (fused := self._fused(each))]
        starts = {self._channels[fused]: name for name, fused in fusions if START in self._targets[fused]}
        found = {
            name: starts[channel]
            for name, fused in fusions
            if (channel := self._channels[fused]) in self._started and starts[channel] != name
        }
        for computation in self._module.computations.values():
            received = megascale.received(computation)
            for each in computation.instructions.values():
                if each.opcode.endswith(("-done", "-update")):
                    begun = received.get(each.operand, each.operand)
                    found[each.name] = found.get(begun, begun)
        return found

    def overlapped(self) -> set[Value]:
        """Returns the collectives between whose start and end the module computes; none if it is not scheduled."""
        found: set[Value] = set()
        computing: set[str] = set()
        for computation in self._module.computations.values() if self._module.is_scheduled else ():
            computed = 0
            running: dict[str, tuple[int, Value]] = {}
            received = megascale.received(computation)
            for instruction in computation.instructions.values():
                end = self._end(instruction)
                if end in running:
                    before, value = running.pop(end)
                    if instruction.opcode.endswith("-update"):
                        running[instruction.name] = before, value
                    elif computed > before:
                        found.add(value)
                elif sent := received.get(instruction.name):
                    running[instruction.name] = computed, (computation.name, sent)
                elif start := self._start(instruction):
                    key, callee = start
                    running[key] = computed, (callee, "") if callee else (computation.name, instruction.name)
                computed += self._computes(instruction, computing)
            if computed:
                computing.add(computation.name)  # XLA prints it before its callers
        return found

    def _fused(self, instruction: Instruction) -> str:
        """The fused computation with a collective that an instruction runs; empty if it runs none."""
        called = instruction.attribute(CALLS) or "" if instruction.opcode == "fusion" else ""
        return called if called in self._targets else ""

    def _start(self, instruction: Instruction) -> tuple[str, str] | None:
        """If an instruction starts a collective, the key of its end, and the computation that has the collective."""
        fused = self._fused(instruction)
        if START in self._targets.get(fused, ()):
            return f"channel {self._channels[fused]}", fused
        if instruction.opcode.endswith("-start") or is_permute(instruction):
            return instruction.name, instruction.attribute(CALLS) or ""
        return None

    def _end(self, instruction: Instruction) -> str:
        """If an instruction ends or updates a collective, the key of its start; else an empty string."""
        if instruction.opcode.endswith(("-done", "-update")):
            return instruction.operand
        fused = self._fused(instruction)
        return f"channel {self._channels[fused]}" if DONE in self._targets.get(fused, ()) else ""

    def _computes(self, instruction: Instruction, computing: set[str]) -> bool:
        match instruction.opcode:
            case "fusion":
                fused = self._fused(instruction)
                return not fused or self._continues(fused)
            case "custom-call":
                return instruction.attribute(TARGET) not in NO_KERNELS
            case "while" | "call":
                return instruction.attribute(BODY if instruction.opcode == "while" else APPLIED) in computing
            case _:
                return is_product(instruction)

    def _continues(self, fused: str) -> bool:
        """Whether a fusion computes while its collective, which another one started, goes on."""
        return self._channels[fused] in self._started and self._targets[fused].isdisjoint((START, DONE))


def _targets(computation: Computation) -> set[str | None]:
    return {each.attribute(TARGET) for each in computation.instructions.values() if each.opcode == "custom-call"}


def _channel(instruction: Instruction) -> str | None:
    return instruction.attribute(r"channel_id=(\d+)")
