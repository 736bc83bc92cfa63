"""The FLOPs of an operation and the bytes that it reads and writes each time it runs, from the types in the text.
Also the cycles that the TPU compiler estimates for it.

Bytes are counted as XLA does (`HloCostAnalysis`): a fusion that only takes a slice of an operand reads the slice, and
one that updates a slice in place writes the slice.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple

from .array_types import MAIN, arrays, leaves, memory_space
from .dataflow import Dataflow, is_product
from .execution_counts import CONTAINERS, callees, is_walkable
from .module import Computation, Instruction, Module, number
from .products import product_flops

SLICES = {"slice", "dynamic-slice", "gather"}
"""Opcodes that read as much of their first operand as they return."""
RENAMES = {"bitcast", "reshape", "get-tuple-element", "opt-barrier"}
"""Opcodes that move nothing."""
UNKNOWN = {"infeed", "outfeed", "send", "recv"}
"""Opcodes that move data while others run, or whose types do not say what they move; so do all `-start` and `-done`."""
FORMAL = {"parameter", "constant", "tuple", "get-tuple-element", "opt-barrier"}
"""Opcodes that take no time."""
NO_WORK = FORMAL | {"bitcast", "after-all", "partition-id", "replica-id", "recv", "send-done", "async-update"}
"""Opcodes that are no operations of a device."""
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
NO_ESTIMATE = 2**64 - 1
MAX_NAMES = 20
"""Names of one value that are followed: a valid program has a few."""


class Work(NamedTuple):
    """The work of an operation each time it runs on a device."""

    flops: float | None
    """FLOPs of its matrix products; None if it has none, or their shapes are not known."""
    bytes: int | None
    """Bytes that it reads from and writes to the device's main memory; None if unknown."""


class Works:
    """The work of the operations of one module."""

    def __init__(self, module: Module, runs: Mapping[str, int | None]) -> None:
        """`runs`: how often each computation runs."""
        self._module, self._runs = module, runs
        self._flow = Dataflow(module)

    def of(self, where: Computation, each: Instruction) -> Work:
        """Returns the work of an instruction in the computation `where`, with the work of its fusion or container."""
        if each.opcode in CONTAINERS:
            return self._inside(where, each)
        return Work(self._flops(where, each), self._bytes(where, each))

    def inside(self, each: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """Yields the instructions that a container runs, also in other containers, with their computations; none of a
        module that is not walkable."""
        seen, pending = set[str](), callees(each) if self._is_walkable else []
        while pending:
            name = pending.pop()
            if name in seen or not (where := self._module.computations.get(name)):
                continue
            seen.add(name)
            for inner in where.instructions.values():
                yield where, inner
                pending += callees(inner)

    def _inside(self, where: Computation, each: Instruction) -> Work:
        """The work of a container each time it runs; unknown if that depends on data, or is too much to add up."""
        times = self._runs[where.name] if self._is_walkable else None
        flops, moved = 0.0, 0.0
        for place, inner in self.inside(each):
            ran = self._runs[place.name]
            if ran is None or not times:
                return Work(None, None)
            if inner.opcode not in CONTAINERS | NO_WORK:
                found = self.of(place, inner)
                flops += (found.flops or 0.0) * ran / times
                moved += (found.bytes or 0.0) * ran / times
        return Work(flops or None, round(moved))

    @cached_property
    def _is_walkable(self) -> bool:
        return is_walkable(self._module)

    def _flops(self, where: Computation, each: Instruction) -> float | None:
        found = [product_flops(*product) for product in self._products(where, each)]
        known = [flops for flops in found if flops is not None]
        return sum(known) if found and len(known) == len(found) else None

    def _products(self, where: Computation, each: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """The matrix products of an operation: itself, or those in its fusion and in the fusions of that."""
        if is_product(each):
            yield where, each
        elif each.opcode == "fusion":
            yield from ((place, inner) for place, inner in self._module.inside(each) if is_product(inner))

    def _bytes(self, where: Computation, each: Instruction) -> int | None:
        if each.opcode in UNKNOWN or each.opcode.endswith(("-start", "-update", "-done")):
            return None
        if each.opcode == "dynamic-update-slice":
            return 2 * self._size(where, each.operands[1]) if len(each.operands) > 1 else None
        if each.opcode in SLICES:
            return 2 * _main_bytes(each.type)
        if each.opcode == "fusion":
            body = self._module.called(each)
            return self._read(where, each, body) + self._written(body) if body else None
        return sum(self._size(where, name) for name in dict.fromkeys(each.operands)) + _main_bytes(each.type)

    def _size(self, where: Computation, name: str) -> int:
        found = where.instructions.get(name)
        return _main_bytes(found.type) if found else 0

    def _read(self, where: Computation, fusion: Instruction, body: Computation) -> int:
        """Bytes that a fusion reads of its operands."""
        parameters = {inner.index: inner for inner in body.instructions.values() if inner.opcode == "parameter"}
        total = 0
        for index, name in enumerate(fusion.operands):
            whole = self._size(where, name)
            inner = parameters.get(index)
            total += self._used(body, inner.name, whole) if inner else whole
        return total

    def _used(self, body: Computation, name: str, whole: int) -> int:
        """Bytes of a value that a fused computation takes: slices, nothing where it is updated in place, or all."""
        total, names = 0, [name]
        for same in names:  # grows by the value's other names
            for user in self._flow.users(body.name, same):
                is_first = user.operand == same
                if user.opcode in SLICES and is_first:
                    total += _main_bytes(user.type)
                elif user.opcode in RENAMES and len(names) < MAX_NAMES:
                    names += [user.name] * (user.name not in names)
                elif not (user.opcode == "dynamic-update-slice" and is_first):
                    return whole
                if total >= whole:
                    return whole
        return total

    def _written(self, body: Computation) -> int:
        """Bytes of a fusion's results: of those that it updates in place, the updates."""
        root = body.root
        if root is None:
            return 0
        return sum(self._result(body, name) for name in (root.operands if root.opcode == "tuple" else [root.name]))

    def _result(self, body: Computation, name: str) -> int:
        found = body.instructions.get(name)
        for _ in range(MAX_NAMES):
            if found is None or found.opcode not in RENAMES:
                break
            found = body.instructions.get(found.operand)
        if found and found.opcode == "dynamic-update-slice" and len(found.operands) > 1:
            return self._size(body, found.operands[1])
        return self._size(body, name)


@lru_cache(4096)
def _main_bytes(type_: str) -> int:
    """Bytes of a type's arrays in the device's main memory: on TPU, others are on the chip or on the host."""
    return sum(arrays(leaf).bits for leaf in leaves(type_) if memory_space(leaf) == MAIN) // 8


def cycles_of(each: Instruction) -> int:
    """Returns the cycles that the TPU compiler estimates for one execution; 0 if it estimates none, which it may write
    as -1, unsigned."""
    found = CYCLES.search(each.rest)
    return number(found[1]) % NO_ESTIMATE if found else 0
