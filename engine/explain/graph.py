"""A propagated program as plain values: its tensors, their shardings, and the origin of each mesh axis."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from ..base import formatting
from ..hlo.module import LIBRARIES

NAME = re.compile(r'loc\((?:fused[^\[]*\[)?"((?:[^"\\]|\\.)*)"(?!:)')
BITS = re.compile(r"\d+")
FRAME = re.compile(r'"((?:[^"\\]|\\.)*)"\("((?:[^"\\]|\\.)*)":(\d+):(\d+)')
"""Function, file, line and column."""
CALLER = str(Path(__file__).with_name("programs.py"))
"""Calls the user's function: no frame further out is the user's."""
RETURN = "func.return"
"""Of the program: it takes what is computed, and its results are the program's, laid out as `jit` asks."""
ASKS = "sdy.sharding_constraint"
SHARD_MAP = "sdy.manual_computation"
CUSTOM_CALL = "stablehlo.custom_call"
PRODUCTS = PRODUCT, CONVOLUTION = "stablehlo.dot_general", "stablehlo.convolution"
TYPED = "explicit type"
"""A constraint that jax itself inserts after an operation, to the sharding in the type of its result."""
Axis = str
"""A mesh axis; with `:(p)s` after its name only a part of it."""
OPERATIONS = {
    PRODUCT: "product",
    CONVOLUTION: "convolution",
    "stablehlo.reduce": "reduction",
    "stablehlo.while": "loop",
    "stablehlo.case": "cond",
    "stablehlo.if": "cond",
    ASKS: "constraint",
    RETURN: "return",
    SHARD_MAP: "shard_map",
    "sdy.named_computation": "call",
    "stablehlo.optimization_barrier": "remat",
}
MOVES = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "convert", "optimization_barrier", "reshape", "transpose", "bitcast_convert")
}
TRIVIAL = {*MOVES, "sdy.named_computation", RETURN, TYPED}
"""Operations that a chain skips if it has others on the same line."""
NOTABLE = {"product", "convolution", "reduction", "loop", "cond", "gather", "scatter", "concatenate"}
"""Operations that a chain shows rather than others on the same line."""


class Place(NamedTuple):
    op_name: str
    """Name that jax gave it, such as `jit(step)/jvp(blocks)/mlp/dot_general`."""
    source: str
    """`file:line` of the innermost frame outside libraries; empty if there is none."""
    caller: str = ""
    """`file:line` of the call of the function that has `source`; empty if the program calls it."""
    frame: str = ""
    """The innermost frame with its function and columns."""


class Places:
    """Places of a module's operations, each location read once. `outside`: of the call of the program itself."""

    def __init__(self, outside: Any = "") -> None:
        self._outside = set(FRAME.findall(str(outside)))
        self._known: dict[Any, Place] = {}

    def of(self, location: Any) -> Place:
        key = location.attr
        if key not in self._known:
            self._known[key] = _place(str(location), self._outside)
        return self._known[key]


def _place(text: str, outside: set[tuple[str, ...]]) -> Place:
    name = NAME.match(text)
    frames = FRAME.findall(text)
    own = [each for each in takewhile(lambda frame: frame[1] != CALLER, frames) if not LIBRARIES.search(each[1])]
    source, *_ = *map(_line, own), ""
    _, caller, *_ = *(_line(each) for each in own if each not in outside), "", ""
    return Place(name[1] if name else "", source, caller, ":".join(frames[0]) if frames else "")


def _line(frame: tuple[str, ...]) -> str:
    return f"{frame[1]}:{frame[2]}"


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of each dim of an operation's operands and results. Dims with a common factor are split together."""

    operands: list[list[list[int]]]
    results: list[list[list[int]]]
    summed: set[int]
    """Factors that the operation sums over, or reduces otherwise."""
    replicated: set[int]
    """Factors that the operation needs unsplit."""
    blocked: set[int]
    """Factors that no axis crosses."""
    moved: set[int]
    """Factors along which the operation moves elements, as a slice or a window does."""

    @property
    def whole(self) -> set[int]:
        return self.replicated | self.blocked


@dataclass(slots=True)
class Operation:
    name: str
    operands: list[int]
    results: list[int]
    place: Place
    rule: Rule | None = None
    within: int | None = None
    """The `shard_map` around it."""

    @property
    def seats(self) -> "list[Seat]":
        """Its operands and results, as far as its rule covers them."""
        if self.rule is None:
            return []
        operands = zip(self.operands, self.rule.operands, strict=False)
        results = zip(self.results, self.rule.results, strict=False)
        return [
            *(Seat(f"operand {number}", *pair) for number, pair in enumerate(operands)),
            *(Seat("the result", *pair) for pair in results),
        ]


class Seat(NamedTuple):
    """A tensor's place in an operation, with the factors of its dims."""

    role: str
    tensor: int
    factors: list[list[int]]


@dataclass(frozen=True, slots=True)
class PropagationStep:
    """One step of the propagation: an operation passed a mesh axis on from `tensor`."""

    number: int
    operation: int
    tensor: int
    role: str
    """The role of that tensor, `operand-1` or `result-0`; `target`: of the other one."""
    target: str


@dataclass(slots=True)
class Tensor:
    """A value of the program. A loop's carry is one tensor: its initial value, inside and after the loop."""

    shape: list[int]
    dtype: str
    axes: list[list[Axis]]
    operation: int | None = None
    """The operation that computes it; None for an argument."""
    result: int = 0
    names: list[str] = field(default_factory=list)
    uses: list[tuple[int, int]] = field(default_factory=list)
    """Operations that take it, and as which operand."""
    joined: list[int] = field(default_factory=list)
    """Tensors that control flow passes on as this one: a loop's initial value and the value after an iteration, what
    each branch returns, a function's arguments."""
    steps: dict[Axis, list[PropagationStep]] = field(default_factory=dict)
    asked: dict[Axis, str] = field(default_factory=dict)
    """For each axis where it was first asked for: `self`, or the name of an origin, such as `input: 2`."""
    unreduced: list[Axis] = field(default_factory=list)
    """Axes over which the sum is still to be taken: each device has a partial sum."""
    device: int | None = None
    """The only device that has it; None for any other value."""
    memory: str = ""
    """Its kind of memory, such as `pinned_host`; empty if the program does not say."""
    given: list[Axis] = field(default_factory=list)
    """Of an argument or a result: the axes that the sharding given for it has, as `in_shardings` or `out_shardings`."""

    @property
    def is_token(self) -> bool:
        """Whether it only orders effects, such as ordered prints."""
        return self.dtype == "!stablehlo.token"

    def dim_of(self, axis: Axis) -> int | None:
        return next((dim for dim, axes in enumerate(self.axes) if axis in axes), None)


@dataclass
class Graph:
    """A program after the propagation: operations, and tensors by index."""

    mesh: dict[str, int]
    has_memory_kinds: bool = False
    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    """Arrays that the program uses but does not take: constants, each once."""
    results: list[int] = field(default_factory=list)
    """Tensors of their own, also where an argument is returned."""
    result_names: list[str] = field(default_factory=list)
    origins: dict[str, int] = field(default_factory=dict)
    """Origin's name, `constraint_3` or `mc_0` (a `shard_map`), to operation."""

    @cached_property
    def is_typed(self) -> bool:
        """Whether values have layouts in their types, as under explicit mesh axes."""
        return any(operation.name == TYPED for operation in self.operations)

    def parts(self, axes: Sequence[Axis]) -> int:
        """Returns the number of parts that mesh axes split a dim into."""
        count = 1
        for axis in axes:
            _, colon, part = axis.partition(")")
            count *= int(part) if colon else self.mesh[axis]
        return count


def word(operation: Operation) -> str:
    return OPERATIONS.get(operation.name, operation.name.rpartition(".")[2])


def layout(tensor: Tensor) -> str:
    """Returns the mesh axes of each dim: `(data, –, model)`."""
    return formatting.layout(tensor.axes, tensor.unreduced, tensor.device, tensor.memory)


def name_of(graph: Graph, index: int) -> str:
    """Returns the name that the program gives a tensor, else its shape: `[4, 128, 512]`."""
    tensor = graph.tensors[index]
    return tensor.names[0] if tensor.names and tensor.names[0] else f"[{', '.join(map(str, tensor.shape))}]"


def bytes_of(dtype: str) -> int:
    """Returns the bytes of an element of a StableHLO type: `f32`, `bf16`, `i1`, `complex<f32>`."""
    found = BITS.search(dtype)
    bits = int(found[0]) if found else 8
    return max(1, bits // 8) * (2 if dtype.startswith("complex") else 1)
