"""The communication of a compiled program: each collective with its mesh axes, how often it runs and what it moves."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..wire.descriptions import CollectiveInfo
from .dataflow import Dataflow
from .device_groups import axes_of, grouping, groups_of
from .execution_counts import runs
from .hlo import Arrays, Computation, Instruction, Module, arrays
from .trip_counts import CALLS

KINDS = {
    opcode: kind
    for kind in (
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "ragged-all-to-all",
        "collective-permute",
        "collective-broadcast",
    )
    for opcode in (kind, f"{kind}-start")
}
"""By opcode; a `-done` is no collective of its own."""
WRITTEN = re.compile(
    r"psum|pmax|pmin|pmean|all_gather|reduce_scatter|psum_scatter|all_to_all|ragged_all_to_all|ppermute|pbroadcast"
)
"""jax primitives that are collectives: in the last word of the op name of one that is in the user's code."""

START = 'custom_call_target="AsyncCollectiveStart"'
MOST_GROUPINGS = 1000
"""Different ones that are not written out as lists; a program has one or a few for each set of mesh axes."""
MOST_SHARED = 1000
"""Characters that a collective, on average, may take from elsewhere: a text may give one long name to thousands."""


def inventory(module: Module, mesh: Mapping[str, int], arguments: Sequence[str] = ()) -> list[CollectiveInfo]:
    """Every collective of the program, the one that moves most first; those in which nothing goes from one device to
    another are none. `mesh`: axis to size, in the mesh's order. `arguments`: what those of the program are called.

    Raises ValueError where its groups are not those of a program on such a mesh.
    """
    found = (info for info in Reading(module, mesh, arguments).collectives() if info.axes)
    return sorted(found, key=lambda info: -(info.bytes_per_device or info.bytes_each))


class Reading:
    """One module being read. What many instructions share, a type, a grouping, an operand, is looked at once."""

    def __init__(self, module: Module, mesh: Mapping[str, int], arguments: Sequence[str] = ()) -> None:
        self.module, self.mesh, self.arguments = module, mesh, arguments
        self.flow = Dataflow(module) if arguments else None
        self.fusions = _fusions(module)
        self.runs = runs(module)
        self.shared = 1000 * MOST_SHARED
        """Characters that collectives may still take from elsewhere."""
        self.unlisted = 0
        """Groupings so far of more devices than their text has characters."""
        self._groups: dict[str, tuple[list[str], int]] = {}
        self._types: dict[str, Arrays] = {}
        self._sums: dict[tuple[str, ...], tuple[int, str]] = {}
        self._written: dict[str, bool] = {}

    def collectives(self) -> Iterator[CollectiveInfo]:
        found = [(where, each) for where, each in self.module.instructions() if each.opcode in KINDS]
        carrying = {where.name: where for where, _ in found if where.name in self.fusions}
        begins = {name for name, where in carrying.items() if _begins(where)}
        starts = {_channel(each) for where, each in found if where.name in begins} - {None}
        for where, instruction in found:
            if where.name in carrying and where.name not in begins and _channel(instruction) in starts:
                continue  # on TPU each fusion that carries an asynchronous collective on repeats it, also within loops
            try:
                yield self._describe(where, instruction)
            except ValueError as error:
                raise ValueError(f"{instruction.name[:100]}: {error}") from error

    def _describe(self, where: Computation, instruction: Instruction) -> CollectiveInfo:
        kind = KINDS[instruction.opcode]
        if kind == "all-reduce" and where.name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"  # TPU: a fusion of this name around an all-reduce and the slice of its own part
        axes, size = self._grouping(grouping(instruction))
        operands = [found for name in instruction.operands if (found := where.instructions.get(name))]
        bits, dtype = self._sum(tuple(operand.type for operand in operands))
        each = bits // 8 * (size if kind == "all-gather" else 1)
        count = self.runs[where.name]
        others = [self.fusions[where.name], *operands] if where.name in self.fusions else operands
        op_name = instruction.op_name or next((name for found in others if (name := found.op_name)), "")
        source = next((line for found in (instruction, *others) if (line := self.module.source(found))), "")
        self.shared += MOST_SHARED - len(source) - len(dtype) - (0 if instruction.op_name else len(op_name))
        if self.shared < 0:
            raise ValueError("the collectives up to it share names of over a thousand characters each")
        return CollectiveInfo(
            kind=kind,
            axes=axes,
            group_size=size,
            count=count,
            bytes_each=each,
            bytes_per_device=None if count is None else count * each,
            dtype=dtype,
            shapes=self._type(instruction.type).shapes,
            op_name=op_name,
            source=source,
            written=self._is_written(op_name),
            gathered=[self._argument(where, name) for name in instruction.operands] if kind == "all-gather" else [],
            multiplied=kind == "all-gather"
            and self.flow is not None
            and self.flow.is_multiplied(where, instruction.name),
        )

    def _argument(self, where: Computation, name: str) -> str:
        at = self.flow.argument(where, name) if self.flow else None
        return "" if at is None or at >= len(self.arguments) else self.arguments[at]

    def _grouping(self, text: str) -> tuple[list[str], int]:
        """Its mesh axes, and devices in a group."""
        if text not in self._groups:
            groups = groups_of(text, math.prod(self.mesh.values()))
            self.unlisted += sum(map(len, groups)) > len(text)
            if self.unlisted > MOST_GROUPINGS:
                raise ValueError(f"more than {MOST_GROUPINGS:,} different groupings")
            self._groups[text] = axes_of(groups, self.mesh), max(map(len, groups), default=1)
        return self._groups[text]

    def _sum(self, types: tuple[str, ...]) -> tuple[int, str]:
        """Bits and dtypes of all of them."""
        if types not in self._sums:
            each = [(self._type(text), times) for text, times in Counter(types).items()]
            dtypes = dict.fromkeys(dtype for found, _ in each for dtype in found.dtypes)
            self._sums[types] = sum(found.bits * times for found, times in each), ", ".join(dtypes)
        return self._sums[types]

    def _type(self, text: str) -> Arrays:
        if text not in self._types:
            self._types[text] = arrays(text)
        return self._types[text]

    def _is_written(self, op_name: str) -> bool:
        if op_name not in self._written:
            self._written[op_name] = bool(WRITTEN.search(re.split(r"\W", op_name)[-1]))
        return self._written[op_name]


def _fusions(module: Module) -> dict[str, Instruction]:
    """A fused computation's name to the instruction that calls it."""
    return {
        called: instruction
        for _, instruction in module.instructions()
        if instruction.opcode == "fusion" and (called := instruction.attribute(CALLS))
    }


def _begins(computation: Computation) -> bool:
    """The fusion that an asynchronous collective begins with."""
    return any(START in instruction.rest for instruction in computation.instructions.values())


def _channel(instruction: Instruction) -> str | None:
    return instruction.attribute(r"channel_id=(\d+)")
