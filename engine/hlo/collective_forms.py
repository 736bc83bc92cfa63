"""The forms of collectives in HLO: what each opcode sends, and where its results are.

XLA's page "Operation semantics" defines the operations. A start's type is a tuple of its operands, its results and
contexts; the start of an all-reduce has the type of its result.
"""

import re
from collections.abc import Sequence

from . import megascale
from .array_types import ARRAY, elements
from .module import Instruction

ALL, FIRST = slice(None), slice(1)
SENT = {
    "all-reduce": ALL,
    "all-gather": ALL,
    "reduce-scatter": ALL,
    "all-to-all": ALL,
    "ragged-all-to-all": FIRST,  # at most; then the buffer of the result, and offsets and sizes of the rows
    "collective-permute": ALL,
    "collective-broadcast": ALL,
    "send": FIRST,  # then a token
}
"""Opcode, without `-start`, to the operands that a collective sends. A `-done` is not a collective of its own, and an
`async-start` calls a computation that has one."""
SLICES = r"\bslice_sizes=\{(\{[\d,{}]*\})\}"
"""The sizes of the slices that a permutation sends of its first operand, and receives in its second."""
PERMUTES = r"\b(_xla_send_recv_source_target_pairs)="


def kind_of(instruction: Instruction) -> str | None:
    """Returns the kind of collective that an instruction is or starts; None if it is none."""
    opcode = instruction.opcode.removesuffix("-start")
    if opcode == "send":
        return megascale.kind_of(instruction) or ("collective-permute" if is_permute(instruction) else None)
    return opcode if opcode in SENT else None


def is_permute(instruction: Instruction) -> bool:
    """Whether a `send` is a permutation without the host: GPU programs have some as pairs of a `send` and a `recv`."""
    return instruction.opcode == "send" and instruction.attribute(PERMUTES) is not None


def sent_operands(instruction: Instruction) -> list[str]:
    is_in_place = instruction.attribute(SLICES) is not None
    return instruction.operands[FIRST if is_in_place else SENT[instruction.opcode.removesuffix("-start")]]


def sent_types(instruction: Instruction, operands: Sequence[Instruction]) -> tuple[str, ...]:
    """Returns the types of what a collective sends of these operands: whole arrays, or slices of one."""
    sizes = instruction.attribute(SLICES)
    if sizes and operands and (sent := ARRAY.search(operands[0].type)):
        return tuple(f"{sent[1]}[{each}]" for each in re.findall(r"\{([\d,]*)\}", sizes))
    return tuple(operand.type for operand in operands)


def results(instruction: Instruction) -> slice:
    """Returns which of the arrays in a collective's type are its results."""
    type_, opcode = instruction.type, instruction.opcode
    if opcode == "send":
        return FIRST
    if not opcode.endswith("-start") or not type_.startswith("((" if opcode == "all-reduce-start" else "("):
        return ALL
    counts = elements(type_)
    return slice(counts[0], sum(counts[:2]))
