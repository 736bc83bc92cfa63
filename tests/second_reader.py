"""A second parser of compiled HLO text, independent of all of engine/hlo.

It reads line by line, uses the types of results instead of operands, and numpy for device groups. It reads only
programs compiled for CPU.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BITS = {"pred": 8, "s4": 4, "u4": 4}
HEAD = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$")
LINE = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = ((?:\(.*?\)|\S+)) ([a-z][\w-]*)\((.*)")
ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
Collectives = Counter[tuple[str, tuple[str, ...], int, int]]
"""How many collectives have the same kind, mesh axes, times per run and bytes each."""


@dataclass(frozen=True)
class Line:
    name: str
    type: str
    opcode: str
    rest: str
    times: int
    """How many times it executes per run."""


def collectives(text: str, mesh: Mapping[str, int]) -> Collectives:
    """Counts the collectives that transfer data between devices.

    Bytes are as in CollectiveInfo: of a gather the result, of a scatter the input, of others a device's shard.
    """
    found: Collectives = Counter()
    for line in _lines(text):
        assert not line.opcode.endswith("-start"), "there are no asynchronous collectives on CPU"
        if line.opcode in KINDS:
            groups = _groups(line.rest, math.prod(mesh.values()))
            if not groups.size or groups.shape[1] == 1:
                continue
            size = _bytes(line.type) * (len(groups[0]) if line.opcode == "reduce-scatter" else 1)
            found[line.opcode, _axes(groups, mesh), line.times, size] += 1
    return found


def flops(text: str) -> float:
    """Counts the FLOPs of one device's matmuls, 2 per multiply-add."""
    types = {line.name: line.type for line in _lines(text)}
    total = 0.0
    for line in _lines(text):
        assert line.opcode != "convolution"
        if line.opcode == "dot":
            left = _shape(types[line.rest.split(",")[0].strip(" %)")])
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line.rest)
            dims = [int(dim) for dim in contracted[1].split(",") if dim] if contracted else []
            total += 2.0 * line.times * math.prod(_shape(line.type)) * math.prod(left[dim] for dim in dims)
    return total


def _lines(text: str) -> Iterator[Line]:
    """Yields the instructions of all computations that run, with how often they do."""
    bodies: dict[str, list[Line]] = {}
    entry = name = ""
    for written in text.splitlines():
        if head := HEAD.match(written):
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif name and (line := LINE.match(re.sub(r"/\*.*?\*/", "", written))):
            bodies[name].append(Line(*line.groups(), 0))
    times: Counter[str] = Counter()
    _run(entry, 1, bodies, times)
    for name, lines in bodies.items():
        for line in lines if times[name] else ():
            yield Line(line.name, line.type, line.opcode, line.rest, times[name])


def _run(name: str, count: int, bodies: Mapping[str, list[Line]], times: Counter[str]) -> None:
    times[name] += count
    for line in bodies[name]:
        trips = 1
        if line.opcode == "while":
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line.rest)
            assert known, line
            trips = int(known[1])
        if line.opcode in ("while", "call", "fusion", "conditional"):
            for key, called in re.findall(r"\b(\w+)=\{?%?([\w.-]+)", line.rest):
                if key in ("body", "to_apply", "calls", "true_computation", "false_computation"):
                    _run(called, count * trips, bodies, times)


def _shape(type: str) -> list[int]:
    found = ARRAY.search(type)
    assert found, type
    return [int(size) for size in found[2].split(",") if size]


def _bytes(type: str) -> int:
    each = ((BITS.get(kind) or int(re.sub(r"\D", "", kind)), shape) for kind, shape in ARRAY.findall(type))
    return sum(bits * math.prod(int(size) for size in shape.split(",") if size) for bits, shape in each) // 8


def _groups(rest: str, devices: int) -> np.ndarray:
    """[groups, devices of a group]"""
    if pairs := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest):
        listed = [[int(a), int(b)] for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs[1]) if a != b]
        return np.array(listed, int).reshape(-1, 2)
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        shape, dims = (tuple(map(int, iota[n].split(","))) for n in (1, 2))
        order = tuple(map(int, iota[3].split(","))) if iota[3] else tuple(range(len(dims)))
        return np.arange(devices).reshape(dims).transpose(order).reshape(shape)
    if named := re.search(r"replica_groups=@?\w*mesh\[(.*?)\](?:, device_ids=\((.*?\)?)\))? \{(.*?)\}", rest):
        return _named_groups(*named.groups(""), devices)
    listed = re.search(r"replica_groups=\{((?:\{[\d,]+\},?)*)\}", rest)
    assert listed, rest
    groups = [[int(member) for member in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    return np.array(groups or [range(devices)])


def _named_groups(mesh: str, ids: str, axes: str, devices: int) -> np.ndarray:
    """Reads groups given by mesh axes; a part of an axis, written (before)size, becomes a dim of its own."""
    sizes = {name: int(size) for name, size in re.findall(r"'?(\w+)'?=(\d+)", mesh)}
    order = np.arange(devices)
    if listed := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids):
        dims = tuple(map(int, listed[1].split(",")))
        order = order.reshape(dims).transpose(tuple(map(int, listed[2].split(",")))) if listed[2] else order
    elif ids:
        order = np.array([int(number) for number in ids.split(",")])
    grid = order.reshape(tuple(sizes.values()))
    taken: list[int] = []
    dims, shape = 0, []
    parts = re.findall(r"'?(\w+)'?(?::\((\d+)\)(\d+))?", axes)
    for name, size in sizes.items():
        mine = sorted((int(before or 1), int(part or size)) for axis, before, part in parts if axis == name)
        done = 1
        for before, part in mine:
            shape += [before // done, part]
            taken.append(dims + 1)
            dims, done = dims + 2, before * part
        shape.append(size // done)
        dims += 1
    grid = grid.reshape(shape)
    kept = [dim for dim in range(grid.ndim) if dim not in taken]
    return grid.transpose(*kept, *taken).reshape(-1, math.prod(grid.shape[dim] for dim in taken))


def _axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which members of a group differ."""
    places = np.stack(np.unravel_index(groups, tuple(mesh.values())), axis=-1)  # [groups, members, axes]
    varies = (places != places[:, :1]).any(axis=(0, 1))
    return tuple(axis for axis, differs in zip(mesh, varies, strict=True) if differs)
