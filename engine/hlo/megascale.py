"""Transfers between TPU slices in a compiled program, which has them as pairs of a `send` and a `recv` of the host.

The program is for one slice: `num_partitions` and the groups of other collectives count the devices of one slice,
in the mesh's order. A collective over several slices is hierarchical: of an all-reduce, a reduce-scatter inside the
slice, a transfer of each device's part, and an all-gather.
"""

import re

from .device_groups import Groups
from .module import Computation, Instruction, Module, numbers

KINDS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
"""Type of a transfer to the collective that it is."""
TYPE = r'_xla_megascale_transfer_type="(\w+)"'
RENDEZVOUS = r'_xla_host_transfer_rendezvous="([^"]*)"'
TARGET = re.compile(r'_xla_megascale_target=(?:"\{(?P<slices>[\d,]{1,9999})\}x|(?P<devices>\{[\d,{}>-]*\}))')
"""The ends of a transfer: slices `"{1,2}x{0:7}"`, or groups or pairs of devices `{{100000->200000},…}`."""
GROUP = re.compile(r"\{([\d,>-]+)\}")
IDS_PER_SLICE = 100_000
"""The devices of slice k, counted from 1, have ids from k times this."""


class WrongSlices(ValueError):
    """A program is for other slices than the mesh."""


def kind_of(instruction: Instruction) -> str | None:
    """Returns the kind of collective whose data a `send` takes to other slices; None if it is something else."""
    if instruction.opcode != "send":
        return None
    return KINDS.get(instruction.attribute(TYPE) or "")


def rendezvous(instruction: Instruction) -> str:
    """Returns what a `send` and its `recv` have in common, such as `psum.7_0`; empty if it is no transfer."""
    return instruction.attribute(RENDEZVOUS) or ""


def name_of(transfer: Instruction) -> str:
    """Returns the name of the collective that a transfer is made from, such as `psum`."""
    return re.sub(r"[._\d]+$", "", rendezvous(transfer))


def received(where: Computation) -> dict[str, str]:
    """Maps the name of each `recv` from other slices to its `send`. Both are in one computation."""
    sent = {rendezvous(each): each.name for each in where.instructions.values() if kind_of(each)}
    return {
        each.name: sent[key]
        for each in where.instructions.values()
        if each.opcode == "recv" and (key := rendezvous(each)) in sent
    }


def slices_of(module: Module, devices: int) -> int:
    """Returns over how many slices a program runs, if it runs on so many devices. Raises WrongSlices if it cannot.

    1 for a program without transfers, whose text may not even say for how many devices it is.
    """
    named = 1 + max((last for _, each in module.instructions() for last in map(max, groups_of(each))), default=0)
    if named == 1:
        return 1
    slices, rest = divmod(devices, max(1, module.partitions))
    if rest or slices < named:
        raise WrongSlices(
            f"it is for {named} or more slices of {module.partitions} devices, but the mesh has {devices}"
        )
    return slices


def groups_of(instruction: Instruction) -> Groups:
    """Returns the groups of slices, counted from 0, that a transfer connects; none if it is no transfer.

    Raises ValueError if it names a device of no slice.
    """
    found = TARGET.search(instruction.rest, instruction.closing) if kind_of(instruction) else None
    if found is None:
        return []
    if found["slices"]:
        groups = [numbers(found["slices"])]
    else:
        groups = [[each // IDS_PER_SLICE for each in numbers(listed)] for listed in GROUP.findall(found["devices"])]
    if any(number < 1 for group in groups for number in group):
        raise ValueError(f"cannot parse its target: {found.group()[:60]}")
    distinct = dict.fromkeys(tuple(sorted({each - 1 for each in group})) for group in groups)
    return [group for group in distinct if len(group) > 1]
