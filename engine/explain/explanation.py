"""Explanations and the requests for them: each value's layout, each collective, the chain of origins behind them.

Plain values, no jax.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ..base import formatting
from ..hlo.step_cost import StepCost
from ..spec.config import RunConfig, UserModel
from ..wire.collective import CollectiveInfo

UNKNOWN = "unknown"
"""Kind of the traffic of an operation that the passes do not tell."""
LinkKind = Literal["input", "captured", "constraint", "out_sharding", "shard_map", "operand", "conflict"]
ValueRole = Literal["argument", "captured", "value", "result"]


class ProgramRequest(Struct, frozen=True, kw_only=True):
    """A user's function that lowers a program."""

    function: UserModel
    mesh: dict[str, int]
    """Axis to size of the mesh in force while the function is called; empty for none."""
    compiles: bool = False
    topology: str = ""
    """TPUs or GPUs that it is for, such as `v5p:4x4x4`; empty for the simulated devices."""

    @property
    def question(self) -> str:
        """The engine's question that explains it."""
        return "explain-for" if self.topology else "explain"


class StepRequest(Struct, frozen=True, kw_only=True):
    config: RunConfig
    rules: dict[str, list[str]] = {}
    """Rules to try in place of the preset's: logical axis to mesh axes."""
    compiles: bool = False
    is_simulated: bool = False
    """Use simulated devices, as another process may hold the platform's."""


class KeptStepRequest(Struct, frozen=True, kw_only=True):
    path: str


class Link(Struct, frozen=True, kw_only=True):
    """One link of a chain. A chain begins at a value and ends where the layout was asked for."""

    dim: int | None
    """The dim of the value that the chain is about; null for an axis over which a sum is still to be taken."""
    axis: str
    """The mesh axis that splits the dim, or would have; empty if a preset leaves the dim unsharded."""
    kind: LinkKind
    """`operand`: taken over from another value of an operation; `input`: asked for by an argument's sharding;
    `captured`: whole on every device, as the function does not take it; `constraint`: asked for by a sharding
    constraint or the sharding of a result; `out_sharding`: by that argument of an operation under explicit axis types;
    `shard_map`: by its specs; `conflict`: not taken over, and why."""
    what: str
    """The link in words."""
    source: str
    """`file:line` of the operation; empty if unknown."""
    caller: str = ""
    """For what asked: `file:line` of the call of the function that has `source`; empty if that is the program."""
    value: str = ""
    """The value that the link leads to: its `name` in `values`, followed by ` #2` for the second value of that name;
    empty if it is not in `values`, or is the value that the chain begins at."""


class ValueOrigin(Struct, frozen=True, kw_only=True):
    """A value of the program: an argument, a result, a named value, or the last value that a line computes."""

    name: str
    """Name of the argument, the result or the named value, else of the operation."""
    shape: list[int]
    """Unsharded shape; inside a `shard_map` the shape of one device's part."""
    dtype: str
    """Its dtype."""
    axes: list[list[str]]
    """For each dim the mesh axes that split it, major first; `data:(1)2` is a part of `data`, of size 2."""
    role: ValueRole
    """`captured`: an array that the function uses but does not take; the compiled program has it as a constant."""
    unreduced: list[str] = []
    """Mesh axes over which a sum is still to be taken: each device has a partial sum."""
    device: int | None = None
    """The only device that has it; null for any other value."""
    memory: str = ""
    """The kind of memory that has it: `device`, `pinned_host` or `unpinned_host`; empty if the program uses one."""
    source: str
    """`file:line` of its operation, for a captured array of the first that takes it; empty for an argument and for a
    result."""
    compiled_axes: list[list[str]] | None = None
    """For each dim the mesh axes that split it in the compiled program; null unless that was asked for."""
    origin: list[Link]
    """A chain for each mesh axis that splits a dim, one after the other; then dims that the preset leaves unsharded;
    then conflicts."""

    @property
    def is_laid_out(self) -> bool:
        """Whether devices have different parts or sums of it."""
        return any(self.axes) or bool(self.unreduced) or self.device is not None or self.memory not in ("", "device")

    @property
    def layout(self) -> str:
        return formatting.layout(self.axes, self.unreduced, self.device, self.memory)


class CollectiveOrigin(Struct, frozen=True, kw_only=True):
    """A collective that the partitioner would insert or that the code calls, or an operation of unknown traffic."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute`, `ragged-all-to-all`,
    `collective-broadcast`; `unknown`: the operation may communicate, and only the compiled program tells how."""
    axes: list[str]
    """The mesh axes it communicates over; if unknown, those that split its operands."""
    count: int | None
    """Executions per step, loop iterations included; null if that depends on data."""
    bytes: int | None
    """Estimated bytes on one device in all executions, as `inspect` counts them; of one execution if `count` is
    null; null if unknown."""
    source: str
    """`file:line` of the operation that needs it; empty if unknown."""
    because: list[str]
    """Why it is needed, and the chains of the values involved."""


class MemoryTransfer(Struct, frozen=True, kw_only=True):
    """A move of a value between the memory of the devices and the host's, which the code asks for."""

    value: str
    """Name of the value, else its shape."""
    before: str
    """The kind of memory that it comes from: `device`, `pinned_host` or `unpinned_host`."""
    after: str
    """The kind of memory that it goes to."""
    count: int | None
    """Executions per step, loop iterations included; null if that depends on data."""
    bytes: int
    """Bytes of one device in all executions; of one execution if `count` is null."""
    source: str
    """`file:line` of the operation that needs it; empty if unknown."""


class Rematerialization(Struct, frozen=True, kw_only=True):
    """An "involuntary full rematerialization": the compiler replicates a value to get from one layout to another."""

    value: str
    """Name of the value; of its operation if it is not among the explained values."""
    shape: list[int]
    """Its unsharded shape; if it is not among them, as the compiler gives it, perhaps of a part."""
    before: list[list[str]]
    """For each dim the mesh axes that split it, in the order of the mesh."""
    device: int | None = None
    """The only device that has it before; null for any other value."""
    after: list[list[str]]
    """For each dim the mesh axes that are to split it, in the order of the mesh."""
    source: str
    """`file:line` of its operation, for an argument of the operation that needs another layout; empty if unknown."""
    because: list[str]
    """Who asked for the mesh axes that it has, and what kept it from having others."""


class CompiledProgram(Struct, frozen=True, kw_only=True):
    """Collectives and memory of the compiled program."""

    collectives: list[CollectiveInfo] | None
    """Its collectives; null if its text cannot be read, or the mesh is unknown."""
    differs: list[str]
    """Kinds of collectives over the same axes whose bytes differ from the estimate, and results whose layouts do, one
    line each."""
    rematerializations: list[Rematerialization] = []
    """Involuntary full rematerializations that the compiler warned of."""
    argument_bytes: int
    """Bytes of the arguments on one device."""
    output_bytes: int
    """Bytes of the results on one device."""
    temporary_bytes: int
    """Bytes of temporaries on one device."""
    cost: StepCost | None = None
    """Its cost on the TPUs or GPUs of `topology`; null without one."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a program is laid out as it is. An estimate: the compiler may choose other collectives."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    program: str
    """The explained program: `FILE.py:FUNCTION`, or a preset."""
    mesh: dict[str, int]
    """Mesh axis to size, in order; empty if the program has no mesh."""
    values: list[ValueOrigin]
    """Arguments first, then values in the order of the program, then results."""
    collectives: list[CollectiveOrigin]
    """Operations whose traffic is unknown, then estimated collectives, those that move most bytes first."""
    memory_transfers: list[MemoryTransfer] | None = []
    """Moves between the memory of the devices and the host's; null if they are unknown: the program has several kinds
    of memory, but was lowered for the CPU, which has one."""
    topology: str = ""
    """The TPUs or GPUs that it is explained for, such as `2*v5p:4x4x4`; empty for simulated devices."""
    cost: StepCost | None = None
    """Its cost on those, traced; null without them."""
    compiled: CompiledProgram | None = None
    """The compiled program; null unless it was asked for."""

    @property
    def has_none(self) -> bool:
        """Whether nothing communicates: nothing estimated or unknown, and nothing compiled, if it was compiled."""
        return not self.collectives and (self.compiled is None or self.compiled.collectives == [])


class Explained(Struct, frozen=True, kw_only=True):
    """An explanation, or the reason that there is none."""

    explanation: Explanation | None = None
    problem: str | None = None


def differences(estimated: Sequence[CollectiveOrigin], found: Sequence[CollectiveInfo] | None) -> list[str]:
    """Returns a line for each kind of collective and mesh axes whose compiled bytes differ from the estimate; none if
    the compiled ones are unknown."""
    if found is None:
        return []
    before, after = by_flow(estimated), by_flow(found)
    return [
        f"{kind} over {formatting.over(axes)}: estimated {formatting.size(before.get((kind, axes), 0))}, "
        f"compiled {formatting.size(after.get((kind, axes), 0))}"
        for kind, axes in sorted({*before, *after})
        if before.get((kind, axes), 0) != after.get((kind, axes), 0)
    ]


def by_flow(collectives: Sequence[CollectiveOrigin | CollectiveInfo]) -> dict[tuple[str, tuple[str, ...]], int]:
    """Returns the bytes of known collectives by kind and mesh axes, whole ones; of one execution if the count is
    unknown."""
    sums: dict[tuple[str, tuple[str, ...]], int] = {}
    for each in collectives:
        if isinstance(each, CollectiveInfo):
            size = each.bytes_each if each.bytes_per_device is None else each.bytes_per_device
        else:
            size = each.bytes
        key = each.kind, tuple(sorted({axis.partition(":")[0] for axis in each.axes}))
        if size is None:
            continue
        sums[key] = sums.get(key, 0) + size
    return sums
