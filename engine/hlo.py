"""The text of a compiled module: its instructions, and the source line each comes from.

Plain text in, plain Python out, no jax: it also reads modules of programs that are not ours. The grammar is that of
XLA's `HloModule::ToString`, as CPU, GPU and TPU print it after compilation.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)")
COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{$")
ARRAY_TYPE = re.compile(r"([a-z]\w*)\[((?:(?:<=)?\d+(?:,(?:<=)?\d+)*)?)\]")
NUMBERED = re.compile(r'(\d+) (?:"(.*)"|\{(.*)\})')
LIBRARIES = re.compile(r"-packages/(jax|jaxlib|flax|optax|chex|haiku|equinox|orbax)/|/engine/sharding\.py$")
"""Files that a reader did not write: a source line is looked for below them."""

BYTES = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}


@dataclass(frozen=True)
class Instruction:
    name: str
    type: str
    opcode: str
    rest: str
    """What stands behind `opcode(`: operands, then attributes."""

    @cached_property
    def operands(self) -> list[str]:
        inner = self.rest[: closing(self.rest)]
        if "%" in inner:
            return re.findall(r"%([\w.\-]+)", inner)
        return [part.split()[-1] for part in inner.split(",") if part.strip()]

    @property
    def operand(self) -> str:
        """The first one."""
        return self.operands[0] if self.operands else ""

    @cached_property
    def attributes(self) -> str:
        return self.rest[closing(self.rest) + 1 :]

    def attribute(self, pattern: str) -> str | None:
        """The first group of `pattern` in the attributes."""
        found = re.search(pattern, self.attributes)
        return found.group(1) if found else None

    @property
    def op_name(self) -> str:
        return self.attribute(r'op_name="((?:[^"\\]|\\.)*)"') or ""


@dataclass(frozen=True)
class Computation:
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
            return self.frames.source(int(frame))
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
        lines = list(self._stack(frame))
        own = (line for line in lines if not LIBRARIES.search(line.rpartition(":")[0]))
        return next(own, lines[0] if lines else "")

    def _stack(self, frame: int) -> Iterator[str]:
        """From the innermost frame out. A parent comes before its frame; a table that runs in circles ends there."""
        while frame in self.frames:
            location, parent = self.frames[frame]
            file, line = self.locations.get(location, (0, 0))
            if file in self.files:
                yield f"{self.files[file]}:{line}"
            if parent >= frame:
                return
            frame = parent


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
    for line in text.splitlines():
        if line[:1].isspace() and current is not None:
            if found := INSTRUCTION.match(line):
                root, name, type_, opcode, rest = found.groups()
                current.instructions[name] = Instruction(name, type_, opcode, rest)
                if root:
                    current.roots.append(name)
        elif line.endswith("{") and (found := COMPUTATION.match(line)):
            current = computations[found.group(2)] = Computation(found.group(2))
            entry = found.group(2) if found.group(1) else entry
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables[line] = {}
        elif table is not None and (found := NUMBERED.match(line)):
            table[int(found.group(1))] = found.group(2) or found.group(3) or ""
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


def type_bytes(text: str) -> int:
    """Bytes of an array or of all arrays of a tuple, padding of tiled layouts left out."""
    return sum(element_bits(dtype) * math.prod(dims) for dtype, dims in type_shapes(text)) // 8


def type_shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """(dtype, dims) of an array, or of each array of a tuple."""
    return [
        (dtype, tuple(int(size.lstrip("<=")) for size in dims.split(",") if size))
        for dtype, dims in ARRAY_TYPE.findall(text)
    ]


def element_bits(dtype: str) -> int:
    """Of `f32`, `bf16`, `s4`, `f8e4m3fn` …"""
    if dtype in BYTES:
        return 8 * BYTES[dtype]
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return int(bits.group(1)) if bits else 0


def closing(rest: str) -> int:
    """Where the parenthesis that is open at the start of `rest` closes."""
    depth = 1
    for at, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if not depth:
            return at
    return len(rest)


def _count(head: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", head)
    return int(found.group(1)) if found else 1


def _frames(tables: Mapping[str, Mapping[int, str]]) -> Frames:
    def field_of(text: str, key: str) -> int:
        found = re.search(rf"{key}=(\d+)", text)
        return int(found.group(1)) if found else 0

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
