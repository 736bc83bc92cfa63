"""The text of a compiled module: its instructions, how often each runs, and the source line each comes from.

Plain text in, plain Python out, no jax: it also reads modules of programs that are not ours. The grammar is that of
XLA's `HloModule::ToString`, as CPU, GPU and TPU print it after compilation.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)")
COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{$")
CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
ARRAY_TYPE = re.compile(r"([a-z]\w*)\[((?:(?:<=)?\d+(?:,(?:<=)?\d+)*)?)\]")
NUMBERED = re.compile(r'(\d+) (?:"(.*)"|\{(.*)\})')
LIBRARIES = re.compile(r"-packages/(jax|jaxlib|flax|optax|chex|haiku|equinox|orbax)/|/engine/sharding\.py$")
"""Files that a reader did not write: a source line is looked for below them."""

BYTES = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}
MOST_STEPS = 3
"""Steps of a loop that are followed to see that its counter moves evenly."""


@dataclass(frozen=True)
class Instruction:
    name: str
    type: str
    opcode: str
    rest: str
    """What stands behind `opcode(`: operands, then attributes."""

    @cached_property
    def operands(self) -> list[str]:
        inner = self.rest[: _closing(self.rest)]
        if "%" in inner:
            return re.findall(r"%([\w.\-]+)", inner)
        return [part.split()[-1] for part in inner.split(",") if part.strip()]

    @property
    def operand(self) -> str:
        """The first one."""
        return self.operands[0] if self.operands else ""

    @cached_property
    def attributes(self) -> str:
        return self.rest[_closing(self.rest) + 1 :]

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
class Call:
    """One computation runs another, `times` for each of its own runs; None where that cannot be known."""

    caller: str
    callee: str
    times: int | None
    opcode: str


@dataclass(frozen=True)
class Module:
    name: str
    partitions: int
    """Devices that the program runs on."""
    computations: dict[str, Computation]
    entry: str
    frames: "Frames"

    @cached_property
    def calls(self) -> list[Call]:
        return [
            call
            for computation in self.computations.values()
            for instruction in computation.instructions.values()
            for call in self._calls_of(computation, instruction)
            if call.callee in self.computations
        ]

    def _calls_of(self, caller: Computation, instruction: Instruction) -> Iterator[Call]:
        text = instruction.rest
        if instruction.opcode in ("async-update", "async-done") or "=" not in text:
            return
        trips = trip_count(self, caller, instruction) if instruction.opcode == "while" else 1
        for role, callee in CALLED.findall(text):
            times = trips
            if instruction.opcode == "conditional":
                times = None
            elif role == "condition" and trips is not None:
                times = trips + 1
            yield Call(caller.name, callee, times, instruction.opcode)
        for names in BRANCHES.findall(text):
            for callee in names.split(","):
                yield Call(caller.name, callee.strip().lstrip("%"), None, instruction.opcode)

    @cached_property
    def runs(self) -> dict[str, int | None]:
        """How often each computation runs when the module runs once; None where that cannot be known."""
        callers: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            callers[call.callee].append(call)
        known: dict[str, int | None] = {self.entry: 1}

        def runs_of(name: str) -> int | None:
            if name not in known:
                known[name] = 0  # a cycle, which no valid module has, ends here
                counts = [_times(runs_of(call.caller), call.times) for call in callers[name]]
                known[name] = None if None in counts else sum(count for count in counts if count is not None)
            return known[name]

        return {name: runs_of(name) for name in self.computations}

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


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """How often a `while` runs its body: what the compiler noted, or else what its counter, step and bound say."""
    noted = KNOWN_TRIPS.search(loop.rest)
    if noted:
        return int(noted.group(1))
    body = module.computations.get(loop.attribute(r"body=%?([\w.\-]+)") or "")
    condition = module.computations.get(loop.attribute(r"condition=%?([\w.\-]+)") or "")
    start = caller.instructions.get(loop.operand)
    if not (body and body.root and body.root.opcode == "tuple" and condition and start and start.opcode == "tuple"):
        return None
    states = [[_integer(module, caller, operand, {}) for operand in start.operands]]
    for _ in range(MOST_STEPS):
        element = dict(enumerate(states[-1]))
        states.append([_integer(module, body, operand, element) for operand in body.root.operands])
    return _trips(module, condition, states)


def _trips(module: Module, condition: Computation, states: list[list[int | None]]) -> int | None:
    """The smallest n for which the compared numbers, which move evenly, end the loop."""
    compare = _comparison(module, condition)
    if compare is None:
        return None
    inside, instruction, outer = compare
    sides: list[list[int | None]] = [[], []]
    for state in states:
        element: dict[int, int | None] = dict(enumerate(state))
        parameters = [_integer(module, condition, name, element) for name in outer] if outer else None
        for side, operand in zip(sides, (*instruction.operands, "", ""), strict=False):
            side.append(_integer(module, inside, operand, element, parameters))
    left, right = (_even(side) for side in sides)
    if left is None or right is None:
        return None
    direction = instruction.attribute(r"direction=(\w+)")
    gap, step = right[0] - left[0], left[1] - right[1]
    if direction in ("GT", "GE"):
        gap, step = -gap, -step
    if direction in ("LE", "GE"):
        gap += 1
    if direction == "NE":
        return gap // step if step and gap % step == 0 and gap // step >= 0 else None
    if direction not in ("LT", "GT", "LE", "GE"):
        return None
    return 0 if gap <= 0 else math.ceil(gap / step) if step > 0 else None


def _comparison(module: Module, condition: Computation) -> tuple[Computation, Instruction, list[str]] | None:
    """The comparison that ends a loop, the computation it stands in, and the operands of the fusion around it."""
    root = condition.root
    if root and root.opcode == "fusion":
        fused = module.computations.get(root.attribute(r"calls=%?([\w.\-]+)") or "")
        inner = fused.root if fused else None
        return (fused, inner, root.operands) if fused and inner and inner.opcode == "compare" else None
    return (condition, root, []) if root and root.opcode == "compare" else None


def _even(values: list[int | None]) -> tuple[int, int] | None:
    """(first, step) of numbers that move evenly."""
    if None in values:
        return None
    known = [value for value in values if value is not None]
    steps = {later - earlier for earlier, later in itertools.pairwise(known)}
    return (known[0], steps.pop()) if len(steps) == 1 else None


def _integer(
    module: Module,
    computation: Computation,
    name: str,
    element: Mapping[int, int | None],
    parameters: list[int | None] | None = None,
) -> int | None:
    """The number that an instruction computes, where it follows from constants and the loop's tuple elements."""
    instruction = computation.instructions.get(name)
    if instruction is None:
        return None

    def of(operand: str) -> int | None:
        return _integer(module, computation, operand, element, parameters)

    match instruction.opcode:
        case "constant":
            found = re.match(r"\{?(-?\d+)\}?\)", instruction.rest)
            return int(found.group(1)) if found else None
        case "parameter":
            index = instruction.rest[: _closing(instruction.rest)]
            given = dict(enumerate(parameters or ()))
            return given.get(int(index)) if index.isdecimal() else None
        case "get-tuple-element":
            source = computation.instructions.get(instruction.operand)
            index = instruction.attribute(r"index=(\d+)")
            return element.get(int(index)) if source and source.opcode == "parameter" and index else None
        case "copy" | "bitcast" | "convert" | "reshape":
            return of(instruction.operand)
        case "add" | "subtract" | "multiply":
            left, right = (of(operand) for operand in (*instruction.operands, "", "")[:2])
            if left is None or right is None:
                return None
            return {"add": left + right, "subtract": left - right, "multiply": left * right}[instruction.opcode]
        case "fusion":
            called = module.computations.get(instruction.attribute(r"calls=%?([\w.\-]+)") or "")
            given = [of(operand) for operand in instruction.operands]
            return _integer(module, called, called.root.name, {}, given) if called and called.root else None
        case _:
            return None


def type_bytes(text: str) -> int:
    """Bytes of an array or of all arrays of a tuple, padding of tiled layouts left out."""
    return sum(element_bits(dtype) * _elements(dims) for dtype, dims in ARRAY_TYPE.findall(text)) // 8


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


def _elements(dims: str) -> int:
    return math.prod(int(size.lstrip("<=")) for size in dims.split(",") if size)


def _times(runs: int | None, times: int | None) -> int | None:
    if runs == 0 or times == 0:
        return 0
    return None if runs is None or times is None else runs * times


def _closing(rest: str) -> int:
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
