"""Parses the text of a compiled module: its instructions, and the source line of each.

Plain text in, plain Python out, no jax: it also reads modules of other programs. The grammar is XLA's
`HloModule::ToString`, as CPU, GPU and TPU print it after compilation.

The text is not trusted: the time to read it must be linear in its length, whatever it contains. So no pattern here may
search from many places to the same distant end, and what several instructions refer to is parsed once.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from msgspec import Struct, field

INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)")
COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{$")
OP_NAME = r'op_name="([^"\\]*+(?:\\.[^"\\]*+)*+)"'
CALLS = r"\bcalls=%?([\w.\-]+)"
APPLIED = r"\bto_apply=%?([\w.\-]+)"
BODY = r"\bbody=%?([\w.\-]+)"
CONDITION = r"\bcondition=%?([\w.\-]+)"
INDEX = r"\bindex=(\d+)"
CALLERS = {"fusion": CALLS, "call": APPLIED, "while": BODY, "async-start": CALLS}
"""Opcodes that run another computation on their operands, to the attribute that names it. A loop has one tuple."""
DIGITS = re.compile(r"\d+")
OPERAND = re.compile(r"%([\w.\-]+)")
BRACKETS = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}")
"""The dims and the layout of a type."""
LINE = re.compile(r".+")
NUMBERED = re.compile(r'(\d+) (?:"(.*)"|\{(.*)\})')
LIBRARIES = re.compile(
    r"-packages/(jax|jaxlib|flax|optax|chex|haiku|equinox|orbax)/"
    r"|/engine/parallel/"  # by whose modules a model shards an activation
)
"""Files that a reader did not write: a source line is looked for below them."""

MAX_TEXT_BYTES = 1_000_000_000  # a module takes several times its text in memory
MAX_DIGITS = 20
"""Digits of a 64-bit number."""

_compiled = lru_cache(re.compile)


class Instruction(Struct, frozen=True, dict=True):
    """One instruction: `name = type opcode(operands), attributes`."""

    name: str
    """Its name, without the `%`."""
    type: str
    """The type of the result, such as `f32[8,16]{1,0}` or a tuple of types."""
    opcode: str
    """The operation, such as `all-reduce`."""
    rest: str
    """The text after `opcode(`: operands, then attributes."""

    @cached_property
    def closing(self) -> int:
        """The position in `rest` at which the operands end."""
        return closing(self.rest)

    @cached_property
    def operands(self) -> list[str]:
        inner = self.rest[: self.closing]
        if "%" in inner:
            return OPERAND.findall(inner)
        return [part.split()[-1].rpartition("*/")[2] for part in BRACKETS.sub("", inner).split(",") if part.strip()]

    @property
    def operand(self) -> str:
        return self.operands[0] if self.operands else ""

    @property
    def index(self) -> int:
        """Which parameter a `parameter` is, or which element of a tuple a `get-tuple-element`; 0 if it is not said."""
        text = self.rest if self.opcode == "parameter" else self.attribute(INDEX) or ""
        found = DIGITS.match(text)
        return number(found[0]) if found else 0

    def attribute(self, pattern: str) -> str | None:
        """Returns the first group of `pattern` in the attributes; None if it does not match. Results are cached."""
        known = vars(self)  # next to the cached properties
        if pattern not in known:
            found = _compiled(pattern).search(self.rest, self.closing + 1)
            known[pattern] = found.group(1) if found else None
        return known[pattern]

    @property
    def op_name(self) -> str:
        """The op name in the metadata, such as `jit(step)/mlp/dot_general`; empty if there is none."""
        return self.attribute(OP_NAME) or ""


class Computation(Struct, frozen=True):
    """One computation of a module: the entry, a loop body, a fusion."""

    name: str
    """Its name, without the `%`."""
    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])
    """Instructions by name."""
    roots: list[str] = field(default_factory=list[str])
    """Names of the instructions marked ROOT: one, in a valid module."""

    @property
    def root(self) -> Instruction | None:
        return self.instructions[self.roots[-1]] if self.roots else None


@dataclass(frozen=True)
class Module:
    """A compiled module."""

    name: str
    """The name in its first line, such as `jit_step`."""
    partitions: int
    """Devices that the program runs on."""
    replicas: int
    """Replicas of the program, which share `partitions` evenly: 1, but for a `pmap`."""
    computations: dict[str, Computation]
    """Computations by name."""
    entry: str
    """The name of the entry computation."""
    is_scheduled: bool
    """Whether instructions run in the order of the text."""
    frames: "Frames"
    """Its tables of source lines."""
    is_tpu: bool
    """Whether the TPU compiler made it."""
    aliases: str
    """The outputs that take the memory of donated arguments, as XLA prints them; empty if none does."""

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                yield computation, instruction

    def called(self, instruction: Instruction) -> Computation | None:
        return self.computations.get(instruction.attribute(CALLS) or "") if " calls=" in instruction.rest else None

    def inside(self, fusion: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """Yields the instructions of a fusion and of the fusions in it, with their computations."""
        seen, pending = set[str](), [fusion]
        while pending:
            body = self.called(pending.pop())
            if body and body.name not in seen:
                seen.add(body.name)
                yield from ((body, inner) for inner in body.instructions.values())
                pending += body.instructions.values()

    @cached_property
    def callers(self) -> dict[str, tuple[Computation, Instruction]]:
        """The name of each computation to the fusion, call, loop or asynchronous start that runs it, and the place of
        that; to one of several."""
        return {
            called: (where, instruction)
            for where, instruction in self.instructions()
            if (role := CALLERS.get(instruction.opcode)) and (called := instruction.attribute(role))
        }

    def around(self, where: Computation) -> tuple[Computation, Instruction] | None:
        """Returns the fusion or asynchronous start that runs a computation as one operation, and its place; None if
        none does."""
        found = self.callers.get(where.name)
        return found if found and found[1].opcode in ("fusion", "async-start") else None

    def source(self, instruction: Instruction) -> str:
        """Returns the `file:line` of an instruction, preferably outside libraries; empty if the module has none."""
        frame = instruction.attribute(r"stack_frame_id=(\d+)")
        if frame:
            return self.frames.source(number(frame))
        file, line = instruction.attribute(r'source_file="([^"]*)"'), instruction.attribute(r"source_line=(\d+)")
        return f"{file}:{line}" if file and line else ""


@dataclass(frozen=True)
class Frames:
    """The tables at the head of a module, which map a stack frame to a source line."""

    files: Mapping[int, str]
    """File id to file name."""
    locations: Mapping[int, tuple[int, int]]
    """Location id to (file id, line)."""
    frames: Mapping[int, tuple[int, int]]
    """Frame id to (location id, parent frame id); the parent is 0 for none."""

    def source(self, frame: int) -> str:
        """Returns the innermost `file:line` outside libraries, or the innermost one if all are in libraries."""
        file, line = self._lines.get(frame) or ("", 0)
        return f"{file}:{line}" if file else ""

    @cached_property
    def _lines(self) -> dict[int, tuple[str, int] | None]:
        """Frame id to (file, line). A parent is numbered before its frame, so a table with cycles is no problem."""
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
    """Parses the text of a module. Raises ValueError if it is not the text of an HLO module."""
    head = re.match(r"HloModule ([^\s,]+)", text)
    if not head:
        raise ValueError(
            "it does not start with `HloModule`: give the text of a compiled module (`compiled.as_text()`)"
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
        _field(first_line, "num_partitions", 1) * _field(first_line, "replica_count", 1),
        _field(first_line, "replica_count", 1),
        computations,
        entry,
        "is_scheduled=true" in first_line,
        _frames(tables),
        ":T(" in first_line,  # the layouts of arguments are tiled
        first_line.partition("input_output_alias={")[2].partition(") }")[0],
    )


def number(digits: str) -> int:
    """Parses a number. Raises ValueError if it has more digits than any number that XLA prints."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits, {digits[:MAX_DIGITS]}…: at most {MAX_DIGITS} are read")
    return int(digits)


def numbers(text: str) -> list[int]:
    """Parses all numbers in a text. Raises ValueError as `number` does."""
    return list(map(int if len(text) <= MAX_DIGITS else number, DIGITS.findall(text)))


def closing(rest: str, start: int = 0) -> int:
    """Returns the position in `rest` of the parenthesis that closes the one before `start`; its length if none does."""
    depth = 1
    while (at := rest.find(")", start)) >= 0:
        depth += rest.count("(", start, at) - 1
        if not depth:
            return at
        start = at + 1
    return len(rest)


def _field(text: str, key: str, missing: int = 0) -> int:
    found = re.search(rf"\b{key}=(\d+)", text)
    return number(found.group(1)) if found else missing


def _frames(tables: Mapping[str, Mapping[int, str]]) -> Frames:
    raw = {
        number: (_field(text, "file_location_id"), _field(text, "parent_frame_id"))
        for number, text in tables.get("StackFrames", {}).items()
    }
    shift = 1 if raw.get(1, (0, 0))[1] == 1 else 0  # current XLA prints parents one too high
    return Frames(
        files=dict(tables.get("FileNames", {})),
        locations={
            number: (_field(text, "file_name_id"), _field(text, "line"))
            for number, text in tables.get("FileLocations", {}).items()
        },
        frames={number: (location, parent - shift) for number, (location, parent) in raw.items()},
    )
