"""The collectives of a compiled program: their mesh axes, how often they run and the bytes they move."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..spec.topology import spans, within
from ..wire.collective import CollectiveInfo
from . import megascale
from .array_types import arrays
from .collective_forms import kind_of, results, sent_operands, sent_types
from .dataflow import Dataflow
from .device_groups import Groups, Ids, axes_of, grouping, groups_of, numbering
from .execution_counts import runs
from .live_values import aliases
from .module import Computation, Instruction, Module
from .overlap import Schedule

WRITTEN = re.compile(
    r"psum|pmax|pmin|pmean|all_gather|reduce_scatter|psum_scatter|all_to_all|ragged_all_to_all|ppermute|pbroadcast"
)
"""jax's collective primitives. The op name of a collective that the user's code calls ends in one of them."""

REDUCTIONS = ("all-reduce", "reduce-scatter")
MAX_GROUPINGS = 1000
"""Distinct groupings that are shorter than the list of their devices. A program has a few per set of mesh axes."""
MAX_NESTED = 10
"""Fusions within each other: a valid program has two or three."""
MAX_SHARED = 1000
"""Characters per collective, on average, that may come from elsewhere: a text may give thousands one long name."""


def inventory(module: Module, mesh: Mapping[str, int], arguments: Sequence[str] = ()) -> list[CollectiveInfo]:
    """Returns the collectives of a program, those that move most bytes first.

    Collectives that move nothing between devices are left out. `mesh`: axis to size, in the mesh's order; over several
    TPU slices that of all. `arguments`: names of the program's arguments. Raises ValueError if the program is not one
    for this mesh.
    """
    found = (info for _, _, info in Reader(module, mesh, arguments).located() if info.axes)
    return sorted(found, key=lambda info: -info.least_bytes)


@dataclass(frozen=True)
class Grouping:
    """The groups of a collective inside slices."""

    groups: Groups
    """Devices as positions in the whole mesh, in order."""
    span: tuple[list[str], int]
    """The mesh axes that the groups span, and the number of devices in the largest group."""

    @cached_property
    def _by_member(self) -> Mapping[int, Groups]:
        found: dict[int, Groups] = {}
        for group in self.groups:
            for member in group:
                found.setdefault(member, []).append(group)
        return found

    def partners(self, position: int) -> tuple[int, ...]:
        """Returns the devices that are in a group with one, itself included, in order."""
        groups = self._by_member.get(position, [(position,)])
        return groups[0] if len(groups) == 1 else tuple(sorted({member for group in groups for member in group}))


class Reader:
    """Reads the collectives of one module. What instructions share (types, groupings, operands) is parsed once."""

    def __init__(self, module: Module, mesh: Mapping[str, int], arguments: Sequence[str] = ()) -> None:
        self.module, self.arguments = module, arguments
        self.slices = megascale.slices_of(module, math.prod(mesh.values()))
        """Number of TPU slices that the mesh spans."""
        self.mesh = within(mesh, self.slices)
        """The mesh inside one slice, whose devices the groups count."""
        self.spans = spans(mesh, self.slices)
        """How many slices each mesh axis spans."""
        self.flow = Dataflow(module) if arguments else None
        outputs = aliases(module) if arguments else ()
        self._updated = {at: argument for at, argument in outputs if argument < len(arguments)}
        """The argument that each output replaces."""
        self.runs = runs(module)
        self._instructions = [(where, each) for where, each in module.instructions() if kind_of(each)]
        self.schedule = Schedule(module, self._instructions)
        self.shared = 1000 * MAX_SHARED
        """Characters that may still come from elsewhere, see `MAX_SHARED`."""
        self.unlisted = 0
        """Groupings so far that name more devices than their text has characters."""
        self._groupings: dict[tuple[str, Ids], Grouping] = {}
        self._received: dict[str, dict[str, str]] = {}

    def located(self) -> Iterator[tuple[Computation, Instruction, CollectiveInfo]]:
        """Yields the collectives in the order of the text, with their place. Raises ValueError, naming the
        instruction."""
        overlapped = self.schedule.overlapped()
        for where, instruction in self._instructions:
            if self.schedule.is_repeated(where, instruction):
                continue
            try:
                names = {(where.name, instruction.name), (where.name, "")}
                yield where, instruction, self._describe(where, instruction, not names.isdisjoint(overlapped))
            except ValueError as error:
                raise ValueError(f"{instruction.name[:100]}: {error}") from error

    def _describe(self, where: Computation, instruction: Instruction, overlapped: bool) -> CollectiveInfo:
        transfer = megascale.kind_of(instruction)
        kind = "reduce-scatter" if _is_scatter(where, instruction) else kind_of(instruction) or ""
        names = sent_operands(instruction)
        axes, size = self._across(instruction) if transfer else self.groups(instruction).span
        operands = [found for name in names if (found := where.instructions.get(name))]
        bits, dtype = _sum(sent_types(instruction, operands))
        each = bits // 8 * (size if kind == "all-gather" else 1)
        count, around = self.runs[where.name], self.module.around(where)
        others = [around[1], *operands] if around else operands
        op_name = instruction.op_name or next((name for found in others if (name := found.op_name)), "")
        if transfer and "/" not in op_name:  # the name of an argument
            op_name = megascale.name_of(instruction)
        source = next((line for found in (instruction, *others) if (line := self.module.source(found))), "")
        outer = self.outermost(where, instruction)
        self.shared += MAX_SHARED - len(source) - len(dtype) - (0 if instruction.op_name else len(op_name))
        self.shared -= 0 if outer is instruction else len(outer.name)
        if self.shared < 0:
            raise ValueError("the collectives so far share names of over 1,000 characters each")
        return CollectiveInfo(
            kind=kind,
            axes=axes,
            group_size=size,
            count=count,
            bytes_each=each,
            bytes_per_device=None if count is None else count * each,
            dtype=dtype,
            shapes=self._shapes(where, instruction),
            op_name=op_name,
            source=source,
            written=_is_written(op_name),
            gathered=[self._argument(where, name) for name in names] if kind == "all-gather" else [],
            reduced=self._reduced(where, instruction) if kind in REDUCTIONS else [],
            multiplied=kind == "all-gather"
            and self.flow is not None
            and self.flow.is_multiplied(where, instruction.name),
            overlapped=overlapped,
            name=outer.name,
            network="dcn" if transfer else "ici" if self.module.is_tpu else None,
        )

    def _across(self, transfer: Instruction) -> tuple[list[str], int]:
        """The mesh axes of a transfer between slices, and the number of slices that exchange data."""
        groups = megascale.groups_of(transfer)
        return axes_of(groups, self.spans), max(map(len, groups), default=1)

    def _shapes(self, where: Computation, instruction: Instruction) -> list[list[int]]:
        """The shapes of the results; for a transfer, the received shape."""
        if _is_scatter(where, instruction):
            return arrays(where.root.type).shapes if where.root else []
        if not megascale.kind_of(instruction):
            return arrays(instruction.type).shapes[results(instruction)]
        if where.name not in self._received:
            self._received[where.name] = {sent: each for each, sent in megascale.received(where).items()}
        result = where.instructions.get(self._received[where.name].get(instruction.name, ""))
        return arrays(result.type).shapes[:1] if result else []

    def outermost(self, where: Computation, instruction: Instruction) -> Instruction:
        """Returns the fusion or asynchronous start around an instruction, or itself: traces name that."""
        for _ in range(MAX_NESTED):
            where, instruction = self.module.around(where) or (where, instruction)
        return instruction

    def _argument(self, where: Computation, name: str) -> str:
        at = self.flow.argument(where, name) if self.flow else None
        return "" if at is None or at >= len(self.arguments) else self.arguments[at]

    def _reduced(self, where: Computation, instruction: Instruction) -> list[str]:
        """For each result, of the arguments that it updates the one with the shortest name: its moments have longer."""
        if self.flow is None or not self._updated:
            return []
        found: list[str] = []
        for index in range(len(instruction.operands)):
            outputs = self.flow.outputs(where, instruction.name, index) & self._updated.keys()
            found.append(min((self.arguments[self._updated[each]] for each in outputs), key=len, default=""))
        return found

    def groups(self, instruction: Instruction) -> Grouping:
        """Returns the groups of a collective, not of a transfer between slices. Raises ValueError."""
        text, devices = grouping(instruction), math.prod(self.mesh.values())
        replicas = self.module.replicas if self.module.partitions == devices else 1
        ids = numbering(instruction, replicas)
        if (text, ids) not in self._groupings:
            groups = groups_of(text, devices, ids, replicas)
            self.unlisted += sum(map(len, groups)) > len(text)
            if self.unlisted > MAX_GROUPINGS:
                raise ValueError(f"more than {MAX_GROUPINGS:,} different groupings")
            span = axes_of(groups, self.mesh), max(map(len, groups), default=1)
            starts = range(0, self.slices * devices, devices)
            whole = [tuple(start + at for at in sorted({*group})) for start in starts for group in groups]
            self._groupings[text, ids] = Grouping(whole, span)
        return self._groupings[text, ids]


@lru_cache(1024)
def _sum(types: tuple[str, ...]) -> tuple[int, str]:
    """The total bits of some types, and their dtypes in words."""
    each = [(arrays(text), times) for text, times in Counter(types).items()]
    dtypes = dict.fromkeys(dtype for found, _ in each for dtype in found.dtypes)
    return sum(found.bits * times for found, times in each), ", ".join(dtypes)


@lru_cache(1024)
def _is_written(op_name: str) -> bool:
    return bool(WRITTEN.search(re.split(r"\W", op_name)[-1]))


def _is_scatter(where: Computation, instruction: Instruction) -> bool:
    """Whether an all-reduce is half of a reduce-scatter: a TPU's fusion that also slices out the device's part."""
    return instruction.opcode == "all-reduce" and where.name.startswith("all-reduce-scatter")
