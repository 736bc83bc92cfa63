"""Memory of a device at the peak of a step, from the partitioned program: nothing is compiled or scheduled.

It follows what XLA's fusion and buffer assignment do in the main. Operations on single elements, and those that only
move or repeat elements, become part of the operations that read their results, and need no memory. A loop keeps its
state in place, and so does an update of a slice. All other results are written to memory, where they stay until the
last operation that reads them, in the order of the program.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from jaxlib.mlir import ir

from .attributes import donated, last_of, owner_of
from .fusion import EXPENSIVE, FUSED, adds_points, feeds_product
from .graph import Places, bytes_of
from .kernel_layouts import LANES, kernel_values
from .lookups import LOOKUP, SCATTER
from .partitioned import Partitioned
from .passes import CALLS
from .trip_counts import trip_count

MANY = 3
"""A value with several readers is written to memory if its sources take this many times its memory: fusion would keep
those instead."""
BACKWARD = "transpose("


@dataclass(eq=False, slots=True)
class Buffer:
    bytes: int
    """0 for an argument, which stays."""
    begin: int
    """Time of the write, in operations; those in a loop count once."""
    end: int
    is_backward: bool
    value: Any
    """The value of jaxlib's MLIR bindings, or the wider one that it copies."""
    op: Any
    narrowed: int = 1
    """How many times wider than the copy that value is."""

    def is_live(self, time: int) -> bool:
        return self.begin <= time <= self.end


Sources = frozenset[Buffer]
"""The memory that a value is computed from: its own, if it is written to memory."""


class LiveMemory:
    """Goes through a program once."""

    def __init__(self, program: Partitioned, platform: str) -> None:
        self.program = program
        self.buffers: list[Buffer] = []
        """Memory besides the arguments, in the order in which it is written."""
        self._moved = Counter[Any]()
        """How often operations read a value from memory or write it, in all runs of loops."""
        self.now = 0
        self.places = Places()
        self._is_tpu, self._is_cpu = platform == "tpu", platform == "cpu"
        self._fixed = kernel_values(program) if self._is_tpu else set[Any]()
        self._sources: dict[Any, Sources] = {}
        self._reusable: list[tuple[Buffer, Buffer]] = []
        """Memory, and what can take its place once nothing reads it any more."""
        self._kept: dict[Buffer, Any] = {}
        """Memory for a copy of a value that a loop keeps, and the body's argument for that value."""
        self._is_backward = False
        with program.module.context:
            arguments = [Buffer(0, 0, 0, False, value, None) for value in program.main.arguments]
            self._hold(self._run(program.main, [frozenset([each]) for each in arguments], 1))
        _share(self._reusable)

    def resized(self, program: Partitioned) -> "LiveMemory":
        """Returns the memory of the same program for other sizes, with the same values in memory."""
        other = copy(self)
        other.__dict__.pop("held", None)
        other.program = program
        sizes = {value: other.padded(value) for value in set(self._alike.values())}
        other.moved = sum(times * sizes[self._alike[value]] for value, times in self._moved.items())
        other.buffers = [
            replace(each, bytes=sizes[self._alike[each.value]] // each.narrowed if each.bytes else 0)
            for each in self.buffers
        ]
        return other

    @cached_property
    def _alike(self) -> dict[Any, Any]:
        """Each value with the first one of which a device has the same part on any mesh."""
        first: dict[object, Any] = {}
        return {
            value: first.setdefault(self._kind(value), value)
            for value in (*self._moved, *(each.value for each in self.buffers))
        }

    def _kind(self, value: Any) -> object:
        block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
        if self.program.is_in_shard_map(block):
            return value
        return str(value.type), str(self.program.layout(value)), value in self._fixed

    @cached_property
    def moved(self) -> int:
        """Bytes that operations read from memory and write to it."""
        return sum(times * self.padded(value) for value, times in self._moved.items())

    @cached_property
    def held(self) -> list[int]:
        changes = Counter[int]()
        for buffer in self.buffers:
            changes[buffer.begin] += buffer.bytes
            changes[buffer.end + 1] -= buffer.bytes
        return list(accumulate(changes[time] for time in range(self.now + 2)))

    @property
    def peak(self) -> int:
        return self.held.index(max(self.held))

    @property
    def at_peak(self) -> list[Buffer]:
        at = self.peak
        return [buffer for buffer in self.buffers if buffer.is_live(at)]

    def share(self, time: int) -> float:
        return round(min(time / max(1, self.now), 1.0), 4)

    def padded(self, value: Any) -> int:
        """Returns the bytes of a device's part of a value in memory; 0 for a token."""
        if not isinstance(value.type, ir.RankedTensorType):
            return 0
        layout = self.program.layout(value)
        size = self.program.bytes(value, layout)
        dims = self.program.part(value, layout)
        ratios = [-(-dim // LANES) * LANES / dim for dim in (dims[-1:] if value in self._fixed else dims) if dim]
        return round(size * min(ratios, default=1)) if self._is_tpu else size

    def _run(self, block: Any, given: Sequence[Sources], times: int) -> list[Sources]:
        """Goes through a block, and returns the sources of its results. `given`: the sources of its arguments."""
        self._sources.update(zip(block.arguments, given, strict=True))
        read: list[Sources] = []
        for operation in block.operations:
            op = operation.operation
            read = [self._sources[value] for value in op.operands]
            if not op.name.endswith(".return"):
                self._sources.update(zip(op.results, self._results(op, read, times), strict=True))
        return read

    def _hold(self, results: Sequence[Sources]) -> None:
        """Keeps the results to the end. Those that do not take the place of a donated argument have memory
        from the beginning, which nothing else uses."""
        self.now += 1
        self._read(results)
        end = last_of(self.program.main)
        taken, free = donated(self.program.module)
        sizes = Counter(map(self.padded, free))
        for index, (value, sources) in enumerate(zip(end.operands, results, strict=True)):
            size = self.padded(value)
            if index in taken:
                continue
            sizes[size] -= 1
            if sizes[size] < 0:
                of_size = (each for each in sources if size and each.bytes == size)
                own = max(of_size, key=lambda each: each.begin, default=None)  # it is written in place
                if own is None:
                    self.buffers.append(own := Buffer(size, 0, self.now, self._is_backward, value, end))
                own.begin = 0

    def _results(self, op: Any, read: list[Sources], times: int) -> list[Sources]:
        outer = self._is_backward
        self._is_backward = outer or BACKWARD in self.places.of(op.location).op_name
        found = self._sources_of(op, read, times)
        self._is_backward = outer
        return found

    def _sources_of(self, op: Any, read: list[Sources], times: int) -> list[Sources]:
        match op.name:
            case "stablehlo.while":
                return self._loop(op, read, times)
            case "stablehlo.optimization_barrier":
                return read
            case name if name == SCATTER and self._is_tpu and adds_points(op):
                found = [frozenset[Buffer]().union(*read)]
            case name if FUSED.fullmatch(name):
                found = [read[0] if name == "stablehlo.dynamic_slice" else frozenset[Buffer]().union(*read)]
                if name == "stablehlo.convert":
                    self._convert(op, *found)
            case name if name in CALLS:
                found = self._run(self.program.called(op), read, times)
            case "sdy.manual_computation" | "sdy.named_computation":
                found = self._run(op.regions[0].blocks[0], read, times)
            case _:
                return self._computed(op, read, times)
        return [self._fused(*pair, times) for pair in zip(op.results, found, strict=True)]

    def _fused(self, value: Any, sources: Sources, times: int) -> Sources:
        """Writes a value with several readers to memory only if that takes less than to keep its sources; on CPU also
        if it is expensive, or if a product reads it."""
        readers = list(value.uses)
        is_shared = len(readers) > 1 and sum(each.bytes for each in sources) >= MANY * self.padded(value)
        is_dear = len(readers) > 1 and value.owner.operation.name in EXPENSIVE
        if not is_shared and not (self._is_cpu and (is_dear or feeds_product(value))):
            return sources
        self.now += 1
        self._read([sources])
        buffer = self._new(value, times)
        self._reuse(sources, buffer)
        return frozenset([buffer])

    def _loop(self, op: Any, read: list[Sources], times: int) -> list[Sources]:
        """State that the body returns unchanged stays where it is; the rest has memory of its own."""
        self.now += 1
        self._read(read)
        body = op.regions[1].blocks[0]
        end = last_of(body)
        state: list[Sources] = []
        for result, sources, given, after in zip(op.results, read, body.arguments, end.operands, strict=True):
            buffer = self._new(result, 0)
            if given == after:
                buffer.bytes = 0  # unless `_convert` finds out that it is converted
                self._kept[buffer] = given
                state.append(sources | {buffer})
            else:
                self._reuse(sources, buffer)
                state.append(frozenset([buffer]))
        after = self._run(body, state, times * (trip_count(op) or 1))
        self.now += 1
        self._read([*after, *state])
        return state

    def _convert(self, op: Any, sources: Sources) -> None:
        """Adds the copy of a value that a loop keeps, if its slices are converted to a narrower type: the compiler
        converts all of it before the loop."""
        for buffer in sources & self._kept.keys():
            given = self._kept[buffer]
            narrow, wide = _width(op.results[0]), _width(given)
            if narrow < wide and self._sources[given] == sources:
                buffer.narrowed = wide // narrow
                buffer.bytes, buffer.value, buffer.op = self.padded(given) // buffer.narrowed, given, op

    def _computed(self, op: Any, read: list[Sources], times: int) -> list[Sources]:
        self.now += 1
        self._read(read)
        for region in op.regions if op.name in ("stablehlo.case", "stablehlo.if") else ():
            self._read(self._run(region.blocks[0], [], times))
        if op.name == "stablehlo.dynamic_update_slice" and len(read[0]) == 1:
            self._moved[op.operands[1]] += times
            return [read[0]]
        for value, sources in zip(op.operands, read, strict=True):
            self._moved[value] += times if sources else 0
        if op.name == LOOKUP:
            looked_up = self.program.source(op.operands[0])
            if (maker := owner_of(looked_up)) is not None and maker.name == "stablehlo.convert":
                self._new(looked_up, 0)  # in memory
        return [frozenset([self._new(value, times)]) for value in op.results]

    def _new(self, value: Any, times: int) -> Buffer:
        buffer = Buffer(self.padded(value), self.now, self.now, self._is_backward, value, value.owner.operation)
        self.buffers.append(buffer)
        self._moved[value] += times
        return buffer

    def _read(self, values: Iterable[Sources]) -> None:
        for sources in values:
            for buffer in sources:
                buffer.end = self.now

    def _reuse(self, sources: Sources, new: Buffer) -> None:
        """Lets a value take the memory of one that it is computed from, if nothing reads that later."""
        self._reusable += [(old, new) for old in sorted(sources, key=lambda each: each.begin)]


def _share(reusable: Iterable[tuple[Buffer, Buffer]]) -> None:
    """Decides, once all readers are known, which memory is reused."""
    given, taken = set[Buffer](), set[Buffer]()
    for old, new in reusable:
        if old.bytes == new.bytes and old.begin < new.begin == old.end and old not in given and new not in taken:
            given.add(old)
            taken.add(new)
            old.end -= 1
            new.is_backward = old.is_backward


def _width(value: Any) -> int:
    return bytes_of(str(value.type.element_type))
