"""The contents of a device's memory at the peak of a step, from the order of its compiled program."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from ..base.formatting import maxima
from ..base.spans import Span, union
from ..wire.descriptions import PeakBuffer, PeakMemory
from .array_types import MAIN, arrays, element_bits, memory_space
from .dataflow import Dataflow
from .execution_counts import is_walkable
from .live_values import Schedule, Value
from .module import Instruction, Module, numbers

ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([\d,]*))?")
TILE = re.compile(r"T\(([\d,]+)\)")
MOST_BUFFERS = 20
"""Buffers that are described."""
UNTOLD = ("broadcast", "while", "copy", "convert", "custom-call")
"""Opcodes of instructions that say less about a buffer than others that use it: they reserve it, or move it."""
MOVES = ("bitcast", "copy", "convert", "reshape", "transpose")
"""Opcodes that only move what they are given."""
MOST_POINTS = 200
"""Points of the curve."""
MAX_STEPS = 20
"""Instructions to follow to what is written to a buffer."""


class Peak(NamedTuple):
    """The peak of a step's memory on one device."""

    memory: PeakMemory
    """How large it is, and when."""
    buffers: list[PeakBuffer]
    """The largest of the buffers that are live then, at most `MOST_BUFFERS`, the largest first."""


@dataclass(frozen=True)
class Buffer:
    """Main memory that some values use one after the other."""

    bytes: int
    values: Sequence[Value]
    """In the order in which they begin."""
    spans: Sequence[Span]
    """When it is live: from each first to each last instruction."""

    def is_live(self, at: int) -> bool:
        return any(begin <= at <= end for begin, end in self.spans)


def peak_memory(module: Module, arguments: Sequence[str]) -> Peak | None:
    """Returns what a step holds at its peak; None if the text is not in the order of a schedule, or if its computations
    call each other so often that a walk through it would take longer than its text.

    `arguments`: names of the program's arguments, in order. Temporaries inside operations are not in the text, nor is
    what the allocator loses between buffers.
    """
    if not module.is_scheduled or not is_walkable(module):
        return None
    schedule = Schedule(module)
    buffers = list(_buffers(schedule))
    changes = [0] * (schedule.now + 2)
    for buffer in buffers:
        for begin, end in buffer.spans:
            changes[begin] += buffer.bytes
            changes[end + 1] -= buffer.bytes
    held = list(accumulate(changes))[: schedule.now + 1]
    peak = max(held)
    at = held.index(peak)
    live = sorted((buffer for buffer in buffers if buffer.is_live(at)), key=lambda buffer: -buffer.bytes)
    reader = _Reader(module, schedule, arguments)
    running = next((value for value in schedule.values if value.begin == at and value.argument is None), None)
    memory = PeakMemory(
        bytes=peak,
        at=reader.share(at),
        op_name=running.instruction.op_name if running else "",
        source=module.source(running.instruction) if running else "",
        curve=maxima(held, MOST_POINTS),
    )
    return Peak(memory, [reader.describe(buffer) for buffer in live[:MOST_BUFFERS]])


def _buffers(schedule: Schedule) -> Iterator[Buffer]:
    """The buffers in main memory. Constants are part of the program."""
    groups: dict[Value, list[Value]] = {}
    for value in schedule.values:
        if value.instruction.opcode != "constant" and memory_space(value.array) == MAIN:
            groups.setdefault(value.owner, []).append(value)
    for values in groups.values():
        values.sort(key=lambda value: value.begin)
        is_argument = any(value.argument is not None for value in values)
        spans = [(0, schedule.now)] if is_argument else union((value.begin, value.end) for value in values)
        yield Buffer(max(padded_bytes(value.array) for value in values), values, spans)


class _Reader:
    """Describes buffers of one module."""

    def __init__(self, module: Module, schedule: Schedule, arguments: Sequence[str]) -> None:
        self._module, self._schedule, self._arguments = module, schedule, arguments
        self._flow = Dataflow(module)
        self._outputs = {value.owner for value in schedule.outputs}

    def share(self, at: int) -> float:
        return round(min(at / max(1, self._schedule.now), 1.0), 4)

    def describe(self, buffer: Buffer) -> PeakBuffer:
        """Describes a buffer by the value that says most about it."""
        largest = max(buffer.values, key=lambda value: padded_bytes(value.array))
        held = next((value for value in buffer.values if value.argument is not None), None)
        telling = [self._written(value) for value in sorted(buffer.values, key=_tells_little)]
        source = (line for each in telling if (line := self._module.source(each)))
        return PeakBuffer(
            name=self._name(held or buffer.values[0]),
            kind="argument" if held else "output" if largest.owner in self._outputs else "temporary",
            bytes=buffer.bytes,
            padding=buffer.bytes - arrays(largest.array).bits // 8,
            layout=largest.array,
            op_name="" if held else telling[0].op_name or telling[0].name,
            source="" if held else next(source, ""),
            begin=self.share(buffer.spans[0][0]),
            end=self.share(buffer.spans[-1][1]),
        )

    def _written(self, value: Value) -> Instruction:
        """What computes a value; if it is an update of a larger array, as in a loop that stacks what it saves for the
        backward pass, what computes the update.
        """
        each, place = value.instruction, value.where
        called = self._module.called(each) if each.opcode == "fusion" else None
        at = called.root if called else each
        inside = called
        for _ in range(MAX_STEPS):
            here = inside or place
            if at is None:
                break
            if at.opcode == "tuple":
                roots = [here.instructions.get(name) for name in at.operands]
                at = next((root for root in roots if root and root.type == value.array), None)
            elif at.opcode == "dynamic-update-slice":
                at = here.instructions.get(at.operands[1])
            elif at.opcode in MOVES:
                at = here.instructions.get(at.operand)
            elif at.opcode == "parameter" and inside:
                at, inside = place.instructions.get(each.operands[at.index]), None
            else:
                break
        return at if at and "/" in at.op_name else each

    def _name(self, value: Value) -> str:
        at = value.argument
        if at is None:
            at = self._flow.argument(value.where, value.instruction.name)
        return self._arguments[at] if at is not None and at < len(self._arguments) else ""


def _tells_little(value: Value) -> tuple[bool, bool]:
    """Whether the name of what computes a value is none that jax gave, and whether it only prepares or moves."""
    return "/" not in value.instruction.op_name, value.instruction.opcode in UNTOLD


@lru_cache(4096)
def padded_bytes(array: str) -> int:
    """Returns the bytes of an array in memory: TPUs pad the minor dims to whole tiles."""
    found = ARRAY.match(array)
    bits = element_bits(found[1]) if found else 0
    if not found or not bits:
        return 0
    dims, tile = numbers(found[2]), TILE.search(array)
    if tile:
        sizes = numbers(tile[1])
        dims = [1] * (len(sizes) - len(dims)) + dims
        shift = len(dims) - len(numbers(found[2]))
        order = [dim + shift for dim in numbers(found[3] or "")] + list(reversed(range(shift)))  # minor to major
        for dim, size in zip(order, reversed(sizes), strict=False):
            dims[dim] = -(-dims[dim] // max(size, 1)) * size
    for size in dims:
        bits *= size
    return -(-bits // 8)
