"""The text of a compiled module: its instructions, and the source line each comes from.

Plain text in, plain Python out, no jax: it also reads modules of programs that are not ours. The grammar is that of
XLA's `HloModule::ToString`, as CPU, GPU and TPU print it after compilation.

The text may be anyone's: each part of it is looked at a fixed number of times, however it is put together. So no
pattern here may search from many places to the same far end, and what several instructions refer to is kept.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from msgspec import Struct, field

INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)")
COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{$")
ARRAY_TYPE = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
OP_NAME = r'op_name="([^"\\]*+(?:\\.[^"\\]*+)*+)"'
DIGITS = re.compile(r"\d+")
OPERAND = re.compile(r"%([\w.\-]+)")
LINE = re.compile(r".+")
NUMBERED = re.compile(r'(\d+) (?:"(.*)"|\{(.*)\})')
LIBRARIES = re.compile(r"-packages/(jax|jaxlib|flax|optax|chex|haiku|equinox|orbax)/|/engine/parallel/constraints\.py$")
"""Files that a reader did not write: a source line is looked for below them."""

BYTES = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}
MOST_DIGITS = 20
"""Of a number of 64 bits."""
MOST_BYTES = 2**63
MOST_DTYPES = 100

_compiled = lru_cache(re.compile)


class Instruction(Struct, frozen=True, dict=True):
    name: str
    type: str
    opcode: str
    rest: str
    """What stands behind `opcode(`: operands, then attributes."""

    @cached_property
    def closing(self) -> int:
        """Where the operands end in `rest`."""
        return closing(self.rest)

    @cached_property
    def operands(self) -> list[str]:
        inner = self.rest[: self.closing]
        if "%" in inner:
            return OPERAND.findall(inner)
        return [part.split()[-1] for part in inner.split(",") if part.strip()]

    @property
    def operand(self) -> str:
        """The first one."""
        return self.operands[0] if self.operands else ""

    def attribute(self, pattern: str) -> str | None:
        """The first group of `pattern` in the attributes; searched for once, as thousands may ask for that of one."""
        known = vars(self)  # where the cached properties are, too
        if pattern not in known:
            found = _compiled(pattern).search(self.rest, self.closing + 1)
            known[pattern] = found.group(1) if found else None
        return known[pattern]

    @property
    def op_name(self) -> str:
        return self.attribute(OP_NAME) or ""


class Arrays(NamedTuple):
    """What a type says: of one array, or of the arrays of a tuple."""

    bits: int
    """Padding of tiled layouts left out."""
    dtypes: list[str]
    """Different ones."""
    shapes: list[list[int]]


class Computation(Struct, frozen=True):
    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])
    roots: list[str] = field(default_factory=list[str])

    @property
    def root(self) -> Instruction | None:
        return self.instructions[self.roots[-1]] if self.roots else None


@dataclass(frozen=True)
class Module:
    name: str
    partitions: int
    """Devices that the program runs on."""
    computations: dict[str, Computation]
    entry: str
    frames: "Frames"

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                yield computation, instruction

    def source(self, instruction: Instruction) -> str:
        """`file:line`, the innermost one that is not a library's; empty where the module does not tell."""
        frame = instruction.attribute(r"stack_frame_id=(\d+)")
        if frame:
            return self.frames.source(number(frame))
        file, line = instruction.attribute(r'source_file="([^"]*)"'), instruction.attribute(r"source_line=(\d+)")
        return f"{file}:{line}" if file and line else ""


@dataclass(frozen=True)
class Frames:
    """The tables at the head of a module, from stack frame to source line."""

    files: Mapping[int, str]
    locations: Mapping[int, tuple[int, int]]
    """To (file, line)."""
    frames: Mapping[int, tuple[int, int]]
    """To (location, parent); parent 0 for none."""

    def source(self, frame: int) -> str:
        """`file:line`: the innermost that is not a library's, or else the innermost."""
        file, line = self._lines.get(frame) or ("", 0)
        return f"{file}:{line}" if file else ""

    @cached_property
    def _lines(self) -> dict[int, tuple[str, int] | None]:
        """(file, line) of each frame. A parent comes before its frame; a table that runs in circles ends there."""
        libraries = {number for number, file in self.files.items() if LIBRARIES.search(file)}
        own: dict[int, tuple[str, int] | None] = {}
        any_: dict[int, tuple[str, int] | None] = {}
        for frame in sorted(self.frames):
            location, parent = self.frames[frame]
            file, line = self.locations.get(location, (0, 0))
            here = (self.files[file], line) if file in self.files else None
            any_[frame] = here or any_.get(parent)
            own[frame] = here if here and file not in libraries else own.get(parent)
        return {frame: own[frame] or any_[frame] for frame in own}


def parse(text: str) -> Module:
    """Raises ValueError where the text is not that of an HLO module."""
    head = re.match(r"HloModule ([^\s,]+)", text)
    if not head:
        raise ValueError(
            "it does not begin with `HloModule`: give the text of a compiled module (`compiled.as_text()`)"
        )
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry = ""
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] | None = None
    shared: dict[str, str] = {}
    for matched in LINE.finditer(text):
        line = matched.group()
        if line[:1].isspace() and current is not None:
            if found := INSTRUCTION.match(line):
                root, name, type_, opcode, rest = found.groups()
                type_, opcode = shared.setdefault(type_, type_), shared.setdefault(opcode, opcode)
                current.instructions[name] = Instruction(name, type_, opcode, rest)
                if root:
                    current.roots.append(name)
        elif line.endswith("{") and (found := COMPUTATION.match(line)):
            current = computations[found.group(2)] = Computation(found.group(2))
            entry = found.group(2) if found.group(1) else entry
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables[line] = {}
        elif table is not None and (found := NUMBERED.match(line)):
            table[number(found.group(1))] = found.group(2) or found.group(3) or ""
    if not entry:
        raise ValueError("it has no ENTRY computation: the text may be cut off")
    first_line = text.partition("\n")[0]
    return Module(
        head.group(1),
        _count(first_line, "num_partitions") * _count(first_line, "replica_count"),
        computations,
        entry,
        _frames(tables),
    )


def arrays(text: str) -> Arrays:
    """Raises ValueError where a type is none that a device could hold."""
    found = ARRAY_TYPE.findall(text)
    times = Counter(found)
    dims = {array: numbers(array[1]) for array in times}
    dtypes = list(dict.fromkeys(dtype for dtype, _ in times))
    if len(dtypes) > MOST_DTYPES:
        raise ValueError(f"a type of {len(dtypes):,} dtypes: at most {MOST_DTYPES}")
    bits = sum(count * _bits(array[0], dims[array]) for array, count in times.items())
    return Arrays(bits, dtypes, [dims[array] for array in found])


def _bits(dtype: str, dims: list[int]) -> int:
    bits = 0 if 0 in dims else element_bits(dtype)
    for size in dims:
        bits *= size
        if bits > 8 * MOST_BYTES:
            raise ValueError(f"an array of {dtype[:20]} in {len(dims)} dims takes more than 2⁶³ bytes")
    return bits


@lru_cache(64)
def element_bits(dtype: str) -> int:
    """Of `f32`, `bf16`, `s4`, `f8e4m3fn` …"""
    if dtype in BYTES:
        return 8 * BYTES[dtype]
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return number(bits.group(1)) if bits else 0


def number(digits: str) -> int:
    """Raises ValueError where it has more digits than any number of XLA's."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits, {digits[:MOST_DIGITS]}…: at most {MOST_DIGITS}")
    return int(digits)


def numbers(text: str) -> list[int]:
    """All in it. Raises ValueError as `number` does."""
    return list(map(int if len(text) <= MOST_DIGITS else number, DIGITS.findall(text)))


def closing(rest: str) -> int:
    """Where the parenthesis that is open at the start of `rest` closes."""
    depth, start = 1, 0
    while (at := rest.find(")", start)) >= 0:
        depth += rest.count("(", start, at) - 1
        if not depth:
            return at
        start = at + 1
    return len(rest)


def _count(head: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", head)
    return number(found.group(1)) if found else 1


def _frames(tables: Mapping[str, Mapping[int, str]]) -> Frames:
    def field_of(text: str, key: str) -> int:
        found = re.search(rf"{key}=(\d+)", text)
        return number(found.group(1)) if found else 0

    raw = {
        number: (field_of(text, "file_location_id"), field_of(text, "parent_frame_id"))
        for number, text in tables.get("StackFrames", {}).items()
    }
    shift = 1 if raw.get(1, (0, 0))[1] == 1 else 0  # parents are printed one too high by the XLA of today
    return Frames(
        files=dict(tables.get("FileNames", {})),
        locations={
            number: (field_of(text, "file_name_id"), field_of(text, "line"))
            for number, text in tables.get("FileLocations", {}).items()
        },
        frames={number: (location, parent - shift) for number, (location, parent) in raw.items()},
    )
