"""The communication of a compiled program: each collective with its mesh axes, how often it runs and what it moves."""

import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .hlo import Computation, Instruction, Module, parse, type_bytes, type_shapes
from .protocol import CollectiveInfo
from .runs import runs

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
WRITTEN = re.compile(
    r"(psum|pmax|pmin|pmean|all_gather|reduce_scatter|psum_scatter|all_to_all|ragged_all_to_all|ppermute|pbroadcast)\w*$"
)
"""jax primitives that are collectives: the last part of the op name of one that stands in the user's code."""

GROUPS = re.compile(
    r"replica_groups=(?P<lists>\{(?:\{[\d,]*\},?)*\})"
    r"|replica_groups=\[(?P<iota>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
    r"|replica_groups=@?\w*mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<ids>[^{]*)\))? \{(?P<axes>[^}]*)\}"
)
START = 'custom_call_target="AsyncCollectiveStart"'
PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")

_logger = logging.getLogger("shardtui")

Groups = list[tuple[int, ...]]
"""Positions in the mesh, in row-major order of its axes, that communicate with each other."""


def inventory(module: Module, mesh: Mapping[str, int]) -> list[CollectiveInfo]:
    """Every collective of the program, the one that moves most first. `mesh`: axis to size, in the mesh's order.

    Raises ValueError where its groups are not those of a program on such a mesh.
    """
    fusions, counts = _fusions(module), runs(module)
    starts = {channel for computation, channel in _fused(module, fusions) if _begins(computation)}
    found: list[CollectiveInfo] = []
    for computation, instruction in module.instructions():
        if _kind(instruction) is None:
            continue
        fusion = fusions.get(computation.name)
        if fusion and _channel(instruction) in starts and not _begins(computation):
            continue  # on TPU each fusion that carries an asynchronous collective on repeats it, loops in between too
        found.append(_describe(module, computation, instruction, fusion, counts[computation.name], mesh))
    return sorted(found, key=lambda info: -(info.bytes_per_device or info.bytes_each))


def readable_inventory(text: str, mesh: Mapping[str, int]) -> list[CollectiveInfo] | None:
    """Of a compiled program's text. None, and a traceback in the log, where the compiler prints what we cannot read:
    that must not end a run."""
    try:
        return inventory(parse(text), mesh)
    except ValueError:
        _logger.warning("the collectives of the step cannot be read", exc_info=True)
        return None


def _fusions(module: Module) -> dict[str, Instruction]:
    """A fused computation's name to the instruction that calls it."""
    return {
        called: instruction
        for _, instruction in module.instructions()
        if instruction.opcode == "fusion" and (called := instruction.attribute(r"\bcalls=%?([\w.\-]+)"))
    }


def _fused(module: Module, fusions: Mapping[str, Instruction]) -> Iterator[tuple[Computation, str]]:
    """Fused computations and the channels of their collectives."""
    for computation, instruction in module.instructions():
        channel = _channel(instruction)
        if channel and computation.name in fusions and _kind(instruction):
            yield computation, channel


def _begins(computation: Computation) -> bool:
    """The fusion that an asynchronous collective begins with."""
    return any(START in instruction.attributes for instruction in computation.instructions.values())


def _channel(instruction: Instruction) -> str | None:
    return instruction.attribute(r"channel_id=(\d+)")


def _describe(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    fusion: Instruction | None,
    count: int | None,
    mesh: Mapping[str, int],
) -> CollectiveInfo:
    kind = _kind(instruction) or ""
    if kind == "all-reduce" and computation.name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # TPU: a fusion of this name around an all-reduce and the slice of its own part
    groups = groups_of(instruction, math.prod(mesh.values()))
    size = max(map(len, groups), default=1)
    operands = [found for name in instruction.operands if (found := computation.instructions.get(name))]
    types = " ".join(operand.type for operand in operands)
    each = type_bytes(types) * (size if kind == "all-gather" else 1)
    related = [instruction, *([fusion] if fusion else []), *operands]
    op_name = next((found.op_name for found in related if found.op_name), "")
    return CollectiveInfo(
        kind=kind,
        axes=axes_of(groups, mesh),
        group_size=size,
        count=count,
        bytes_each=each,
        bytes_per_device=None if count is None else count * each,
        dtype=", ".join(dict.fromkeys(dtype for dtype, _ in type_shapes(types))),
        shapes=[list(shape) for _, shape in type_shapes(instruction.type)],
        op_name=op_name,
        source=next((source for found in related if (source := module.source(found))), ""),
        written=bool(WRITTEN.search(op_name)),
    )


def _kind(instruction: Instruction) -> str | None:
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in KINDS else None


def groups_of(instruction: Instruction, devices: int) -> Groups:
    """Which positions communicate; the pairs of a permutation that stay where they are left out.

    Raises ValueError where they are not those of a program on `devices` devices.
    """
    groups = _groups(instruction, devices)
    if any(member >= devices for group in groups for member in group):
        raise ValueError(f"{instruction.name}: its groups name more than {devices} devices")
    return groups


def _groups(instruction: Instruction, devices: int) -> Groups:
    pairs = PAIRS.search(instruction.attributes)
    if pairs:
        numbers = _numbers(pairs.group(1))
        return [(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True) if a != b]
    found = GROUPS.search(instruction.attributes)
    if found is None or found["lists"] == "{}":
        return [tuple(range(devices))]
    if found["lists"]:
        return [tuple(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", found["lists"])]
    if found["iota"]:
        size = max(1, _numbers(found["iota"])[-1])
        order = _iota(_numbers(found["dims"]), _numbers(found["order"] or ""), devices)
        return [tuple(order[at : at + size]) for at in range(0, len(order), size)]
    return _mesh_groups(found["mesh"], found["ids"] or "", found["axes"], devices)


def _mesh_groups(mesh: str, ids: str, axes: str, devices: int) -> Groups:
    """`mesh['a'=4,'b'=2], device_ids=([4,2]T(1,0)) {'a', 'b':(1)2}`: groups along some axes, or parts of axes."""
    sizes = {name: int(size) for name, size in re.findall(r"['\"]?(\w+)['\"]?=(\d+)", mesh)}
    parts: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in re.findall(r"['\"]?([A-Za-z_]\w*)['\"]?(?::\((\d+)\)(\d+))?", axes):
        parts.setdefault(name, []).append((int(before or 1), int(size or sizes.get(name, 1))))
    if listed := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids):
        order = _iota(_numbers(listed[1]), _numbers(listed[2] or ""), devices)
    else:
        order = _numbers(ids) or _iota(list(sizes.values()), [], devices)
    if math.prod(sizes.values()) != len(order):
        raise ValueError(f"a mesh of {sizes} for {len(order)} devices")
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in zip(order, itertools.product(*(range(size) for size in sizes.values())), strict=True):
        fixed = tuple(
            _without(index, sizes[name], parts.get(name, [])) for name, index in zip(sizes, place, strict=True)
        )
        groups.setdefault(fixed, []).append(device)
    return [tuple(group) for group in groups.values()]


def _without(index: int, size: int, parts: Iterable[tuple[int, int]]) -> int:
    """A coordinate with the digits taken out that the parts (what stands before, size) of its axis give."""
    for before, count in parts:
        after = size // max(1, before * count)
        if before * count * after != size:
            raise ValueError(f"an axis of {size} has no part ({before}){count}")
        index -= index // after % count * after
    return index


def axes_of(groups: Groups, mesh: Mapping[str, int]) -> list[str]:
    """The mesh axes along which members of a group differ: the groups run over all of these, or a part of them."""
    places = list(itertools.product(*(range(size) for size in mesh.values())))
    differing = [False] * len(mesh)
    for group in groups:
        for member in group[1:]:
            pairs = zip(differing, places[group[0]], places[member], strict=True)
            differing = [known or a != b for known, a, b in pairs]
    return [axis for axis, differs in zip(mesh, differing, strict=True) if differs]


def _iota(dims: Sequence[int], order: Sequence[int], devices: int) -> list[int]:
    """`arange(prod(dims)).reshape(dims).transpose(order).ravel()`."""
    order = order or range(len(dims))
    if math.prod(dims) != devices or sorted(order) != list(range(len(dims))):
        raise ValueError(f"groups of an iota {dims} in order {list(order)} for {devices} devices")
    strides = [math.prod(dims[at + 1 :]) for at in range(len(dims))]
    return [
        sum(index * strides[dim] for index, dim in zip(place, order, strict=True))
        for place in itertools.product(*(range(dims[dim]) for dim in order))
    ]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
