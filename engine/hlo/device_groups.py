"""The device groups of a collective, and the mesh axes along which the devices of a group differ."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from .module import Instruction, number, numbers

PAIRS = re.compile(r'source_target_pairs="?\{([\d,{}]*)\}')
"""The (source, target) pairs of a permutation."""
GROUPS = re.compile(
    r"replica_groups=(?:\{(?P<lists>[\d,{}]*)\}"
    r"|\[(?P<iota>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
    r"|@?\w*mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<ids>[^{]*)\))? \{(?P<axes>[^}]*)\})"
)
"""The three forms of groups: lists, an iota, and axes of a mesh."""
AXIS = re.compile(r"\s*['\"]?(\w+)['\"]?=(\d+)\s*")
"""An axis of the mesh form: `'a'=4`."""
PART = re.compile(r"\s*['\"]?(\w+)['\"]?(?::\((\d+)\)(\d+))?\s*")
"""An axis that groups span, or a part of it: `'b':(1)2` is the part of size 2 that comes after parts of size 1."""
MAX_DIMS = 64
"""Dims of an iota or a mesh; numpy has the same limit."""

Groups = list[tuple[int, ...]]
"""Devices that communicate with each other, as positions in the mesh in row-major order of its axes."""
Ids = Literal["devices", "partitions", "replicas", "replicas, all partitions"]
"""What the ids in groups count. A device is a partition of a replica, counted replica by replica. Groups of partitions
are within each replica; those of replicas connect a partition of each, or all partitions of all."""
ONE_REPLICA = r"\breplica_groups=(\{\{0\}\}|\[1,1\]<=\[1\])"
HAVE_GLOBAL_IDS = ("all-reduce", "all-gather", "reduce-scatter")
"""Opcodes with the attribute `use_global_device_ids`."""


def grouping(instruction: Instruction) -> str:
    """Returns the text of an instruction's device groups; empty if all devices form one group.

    Raises ValueError if they have none of the forms that XLA prints.
    """
    for key, pattern in (("source_target_pairs=", PAIRS), ("replica_groups=", GROUPS)):
        at = instruction.rest.find(key, instruction.closing + 1)
        if at >= 0:
            found = pattern.match(instruction.rest, at)
            if not found:
                raise ValueError(f"cannot parse its groups: {instruction.rest[at : at + 60]}")
            return found.group()
    return ""


def numbering(instruction: Instruction, replicas: int) -> Ids:
    """Returns what the ids in an instruction's groups count: XLA's "collective operation group mode", which follows
    from its channel and `use_global_device_ids`. Ids beyond the only replica count devices: texts may be shortened."""
    has_channel = instruction.attribute(r"\b(channel_id=)") is not None
    if not has_channel:
        return "replicas" if replicas > 1 else "devices"
    if instruction.opcode.removesuffix("-start") not in HAVE_GLOBAL_IDS:
        return "partitions"
    is_short = replicas == 1 and instruction.attribute(ONE_REPLICA) is None
    is_global = is_short or instruction.attribute(r"\b(use_global_device_ids=true)")
    return "devices" if is_global else "replicas, all partitions"


def groups_of(text: str, devices: int, ids: Ids = "devices", replicas: int = 1) -> Groups:
    """Parses the text that `grouping` returned. Pairs of a permutation from a device to itself are left out.

    Raises ValueError if they are not groups of `devices` devices.
    """
    each = devices // replicas
    count = {"devices": devices, "partitions": each}.get(ids, replicas)
    pairs = PAIRS.match(text)
    groups = _pairs(pairs[1], count) if pairs else _groups(text, count)
    if any(member >= count for group in groups for member in group):
        raise ValueError(f"its groups name a device outside the mesh of {devices}")
    match ids:
        case "devices":
            return groups
        case "partitions":
            return [tuple(start + at for at in group) for start in range(0, devices, each) for group in groups]
        case "replicas":
            return [tuple(replica * each + at for replica in group) for at in range(each) for group in groups]
        case _:
            return [tuple(replica * each + at for replica in group for at in range(each)) for group in groups]


def axes_of(groups: Groups, mesh: Mapping[str, int]) -> list[str]:
    """Returns the mesh axes along which members of a group differ: groups span all or part of each of them."""
    found: list[str] = []
    stride = math.prod(mesh.values())
    for axis, size in mesh.items():
        stride //= size
        if any(len({member // stride % size for member in group}) > 1 for group in groups):
            found.append(axis)
    return found


def _pairs(text: str, devices: int) -> Groups:
    if (count := text.count("{")) > devices**2:
        raise ValueError(f"it has {count:,} source-target pairs for {devices} devices")
    listed = [tuple(numbers(pair)) for pair in re.findall(r"\{([^{}]*)\}", text)]
    if any(len(pair) != 2 for pair in listed):
        raise ValueError(f"cannot parse its pairs: {text[:60]}")
    return [pair for pair in listed if pair[0] != pair[1]]


def _groups(text: str, devices: int) -> Groups:
    found = GROUPS.match(text)
    if found is None or found["lists"] == "":
        return [tuple(range(devices))]
    if found["lists"]:
        return _lists(found["lists"], devices)
    if found["mesh"] is not None:
        return _mesh_groups(found["mesh"], found["ids"] or "", found["axes"], devices)
    sizes = numbers(found["iota"])
    if len(sizes) > MAX_DIMS or math.prod(sizes) != devices:
        raise ValueError(f"groups of [{found['iota'][:60]}] devices, but the mesh has {devices}")
    order = _iota(numbers(found["dims"]), numbers(found["order"] or ""), devices)
    return [tuple(order[at : at + sizes[-1]]) for at in range(0, len(order), sizes[-1])]


def _lists(text: str, devices: int) -> Groups:
    if (listed := text.count(",") + 1) > devices:
        raise ValueError(f"its groups list {listed:,} devices, but the mesh has {devices}")
    return [tuple(numbers(group)) for group in re.findall(r"\{([\d,]+)\}", text)]


def _mesh_groups(mesh: str, ids: str, axes: str, devices: int) -> Groups:
    """`mesh['a'=4,'b'=2], device_ids=([4,2]T(1,0)) {'a', 'b':(1)2}`: groups along some axes, or parts of axes."""
    sizes = {name: number(size) for name, size in _split(AXIS, mesh)}
    parts: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in _split(PART, axes):
        parts.setdefault(name, []).append((number(before or "1"), number(size) if size else sizes.get(name, 1)))
    if listed := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids):
        order = _iota(numbers(listed[1]), numbers(listed[2] or ""), devices)
    else:
        order = numbers(ids) or _iota(list(sizes.values()), [], devices)
    if math.prod(sizes.values()) != len(order) or len(order) > devices:
        raise ValueError(f"a mesh of {sizes} for {len(order)} of {devices} devices")
    fixed = (
        [_without_parts(index, size, parts.get(name, [])) for index in range(size)] for name, size in sizes.items()
    )
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in zip(order, itertools.product(*fixed), strict=True):
        groups.setdefault(place, []).append(device)
    return [tuple(group) for group in groups.values()]


def _split(pattern: re.Pattern[str], text: str) -> list[tuple[str, ...]]:
    """The groups of the pattern in each comma-separated part. Raises ValueError if a part does not match."""
    parts = text.split(",") if text.strip() else []
    found = [match.groups() for part in parts[: MAX_DIMS + 1] if (match := pattern.fullmatch(part))]
    if len(found) != len(parts) or len(parts) > MAX_DIMS:
        raise ValueError(f"cannot parse its mesh: {text[:60]}")
    return found


def _without_parts(index: int, size: int, parts: Iterable[tuple[int, int]]) -> int:
    """A coordinate with the digits of some parts of its axis set to 0. A part is (size of those before it, size)."""
    for before, count in parts:
        after = size // max(1, before * count)
        if before * count * after != size:
            raise ValueError(f"an axis of {size} has no part ({before}){count}")
        index -= index // after % count * after
    return index


def _iota(dims: Sequence[int], order: Sequence[int], devices: int) -> list[int]:
    """`arange(prod(dims)).reshape(dims).transpose(order).ravel()`."""
    order = order or range(len(dims))
    if len(dims) > MAX_DIMS or math.prod(dims) != devices or sorted(order) != list(range(len(dims))):
        raise ValueError(f"groups of an iota {dims[:8]} in order {list(order[:8])} for {devices} devices")
    places = [0]
    for dim in order:
        stride = math.prod(dims[dim + 1 :])
        places = [place + index * stride for place in places for index in range(dims[dim])]
    return places
