"""The operations of a compiled program by the names in its trace, and the part of the step that each belongs to."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from ..base import formatting
from ..base.user_error import UserError
from ..hlo.collectives import Grouping, Reader
from ..hlo.dataflow import is_product
from ..hlo.execution_counts import CONTAINERS
from ..hlo.module import Computation, Instruction, Module, parse
from ..hlo.products import scope
from ..hlo.work import FORMAL, Work, Works
from ..wire.collective import CollectiveInfo
from .trace import ProgramTrace

MOVES = {
    *("copy", "copy-start", "copy-done", "transpose", "concatenate", "slice", "dynamic-slice", "dynamic-update-slice"),
    *("pad", "bitcast", "reshape"),
}
"""Opcodes that only move data."""
PRODUCTS, FUSIONS, COPIES = "matrix products", "other fusions", "copies"
OPERAND = re.compile(r"(\w+\[[\d,]*\]\S*) %([\w.\-]+)")
"""An operand with its type."""


@dataclass(frozen=True)
class Operation:
    """One instruction of the program, by its name in the trace."""

    name: str
    """Name of the instruction."""
    part: str
    """`PRODUCTS`, `FUSIONS`, `COPIES`, or kind and axes of a collective."""
    module: str
    """Scope of the code; empty if unknown."""
    source: str
    """`file:line`; empty if unknown."""
    collective: str = ""
    """Name of the collective that the operation begins, continues or ends; empty for others."""
    is_begin: bool = True
    """Whether its executions count: the end of an asynchronous operation does not."""
    is_container: bool = False
    """Whether its time is the sum over the operations inside."""


class Program:
    """The text of a program, joined to traces by the names of instructions."""

    def __init__(self, module: Module, mesh: Mapping[str, int], devices: int, products: set[str]) -> None:
        """`devices`: how many the program runs on. `products`: instructions that the profiler calls matrix products."""
        self.module, self.mesh = module, mesh
        self._products = products
        self.collectives: dict[str, CollectiveInfo] = {}
        """By the instruction that the trace names: the collective, or the fusion that contains it."""
        self._groupings: dict[str, Grouping] = {}
        reader = Reader(module, mesh or {"": devices})
        self._begins, self.runs = reader.schedule.begins(), reader.runs
        for _, instruction, info in reader.located():
            if info.axes:
                self.collectives[info.name] = info if mesh else replace(info, axes=[])
                if info.network != "dcn":
                    self._groupings[info.name] = reader.groups(instruction)
        self.operations = {
            each.name: self._operation(each)
            for where, each in module.instructions()
            if not module.around(where)  # the instructions of a fusion are not in traces
        }

    def partners(self, collective: str, position: int) -> tuple[int, ...]:
        """Returns the positions in the mesh of the devices that communicate with one, itself included."""
        grouping = self._groupings.get(collective)
        return grouping.partners(position) if grouping else (position,)

    def work(self, name: str) -> Work:
        """Returns the work of an operation each time it runs on a device. Raises UserError if its types are refused."""
        try:
            return self._works.of(*self._located[name])
        except ValueError as error:
            raise UserError(f"the text of {self.module.name} cannot be read: {name[:100]}: {error}") from error

    def part_of(self, name: str, is_waiting: bool = False) -> str:
        """Returns the part of the step that an operation's time belongs to; of a collective, waiting or exposed."""
        part = self.operations[name].part
        if name not in self.collectives:
            return part
        return f"{part}: {'waiting' if is_waiting else 'exposed'}"

    def join(self, traced: set[str]) -> None:
        """Makes operations of the calls and loops that a trace has as one event, without the operations inside.

        `traced`: the names in the trace. jax 0.12's CPU compiler runs small loops, such as random bits, in this way.
        """
        for name in traced & self.operations.keys():
            operation, (_, each) = self.operations[name], self._located[name]
            if operation.is_container:
                inner = [found for _, found in self._works.inside(each)]
                if traced.isdisjoint(found.name for found in inner):
                    part = self._part(each, inner)
                    self.operations[name] = dataclasses.replace(operation, is_container=False, part=part)

    @cached_property
    def _works(self) -> Works:
        return Works(self.module, self.runs)

    @cached_property
    def _located(self) -> dict[str, tuple[Computation, Instruction]]:
        return {instruction.name: (where, instruction) for where, instruction in self.module.instructions()}

    def _operation(self, each: Instruction) -> Operation:
        name = self._begins.get(each.name, each.name)
        inner = [found for _, found in self.module.inside(each)]
        if name in self.collectives and not (name != each.name and any(map(is_product, inner))):
            info = self.collectives[name]
            over = f" over {formatting.over(info.axes, info.network)}" if info.axes else ""
            part, source = f"{info.kind}{over}", info.source
        else:
            name, part, source = "", self._part(each, inner), self.module.source(each)
        return Operation(
            name=each.name,
            part=part,
            module=_module(each.op_name),
            source=source,
            collective=name,
            is_begin=name in ("", each.name),
            is_container=each.opcode in CONTAINERS,
        )

    def _part(self, each: Instruction, inner: Sequence[Instruction]) -> str:
        if is_product(each) or each.name in self._products or any(map(is_product, inner)):
            return PRODUCTS
        opcodes = {other.opcode for other in inner} - FORMAL or {each.opcode}
        return COPIES if opcodes <= MOVES else FUSIONS


def read_program(traced: ProgramTrace, text: str, mesh: Mapping[str, int]) -> Program:
    """Reads the program of a trace. `text`: its HLO text; if empty, the text in the trace, or else made of its events.

    `mesh`: axis to size, in order; empty if unknown. Raises UserError if there is no text, or it cannot be read or is
    of another mesh.
    """
    if not (text or traced.text or traced.instructions):
        raise UserError(
            f"the trace has no text of {traced.name}, which jax leaves out of a program from its compilation cache: "
            "give --hlo FILE with what compiled.as_text() returns"
        )
    try:
        module = parse(text or traced.text or _text_of_events(traced))
        devices = math.prod(mesh.values())
        if module.name != traced.name:
            raise UserError(f"the trace is of {traced.name}, but --hlo is the text of {module.name}: give its own text")
        found = max(module.partitions, len(traced.devices))  # the text in a trace does not say its partitions
        if mesh and devices < found:
            has = f"--mesh {formatting.axes(dict(mesh))} has {formatting.counted(devices, 'device')}"
            raise UserError(f"{has}, but {traced.name} ran on {found}")
        program = Program(module, mesh, devices if mesh else found, traced.products)
        program.join({each.name for found in traced.devices.values() for each in found})
        return program
    except ValueError as error:
        raise UserError(f"the text of {traced.name} cannot be read: {error}") from error


def _text_of_events(traced: ProgramTrace) -> str:
    """HLO text made of the events, which on TPU are whole instructions; the instructions of fusions are missing."""
    lines = dict(traced.instructions)
    for type_, name in OPERAND.findall("".join(traced.instructions.values())):
        lines.setdefault(name, f"  %{name} = {type_} parameter(0)")
    for name in {each.name for found in traced.devices.values() for each in found} - lines.keys():
        lines[name] = f"  %{name} = () fusion()"
    head = f"HloModule {traced.name}, num_partitions={len(traced.devices)}\n\nENTRY %main () -> () {{\n"
    return head + "\n".join(lines.values()) + "\n}\n"


def _module(op_name: str) -> str:
    """The scope of the code, without jax's own words and without the primitive."""
    words = scope(op_name.partition(";")[0].rpartition("/")[0]).split("/")
    return "/".join(word for word in words if word not in formatting.WRAPPERS)
