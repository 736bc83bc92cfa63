"""A propagated program as plain values: its tensors, their shardings, and the origin of each mesh axis."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from ..base import formatting
from ..hlo.module import LIBRARIES

NAME = re.compile(r'loc\((?:fused[^\[]*\[)?"((?:[^"\\]|\\.)*)"(?!:)')
FRAME = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
CALLER = str(Path(__file__).with_name("programs.py"))
"""Calls the user's function: no frame further out is the user's."""
Axis = str
"""A mesh axis; with `:(p)s` after its name only a part of it."""
OPERATIONS = {
    "stablehlo.dot_general": "product",
    "stablehlo.convolution": "convolution",
    "stablehlo.reduce": "reduction",
    "stablehlo.while": "loop",
    "stablehlo.case": "cond",
    "stablehlo.if": "cond",
    "sdy.sharding_constraint": "constraint",
    "sdy.manual_computation": "shard_map",
    "sdy.named_computation": "call",
    "stablehlo.optimization_barrier": "remat",
}
MOVES = {
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "convert", "optimization_barrier", "reshape", "transpose", "bitcast_convert")
}
TRIVIAL = {*MOVES, "sdy.named_computation"}
"""Operations that a chain skips if it has others on the same line."""
NOTABLE = {"product", "convolution", "reduction", "loop", "cond", "gather", "scatter", "concatenate"}
"""Operations that a chain shows rather than others on the same line."""


class Place(NamedTuple):
    op_name: str
    """Name that jax gave it, such as `jit(step)/jvp(blocks)/mlp/dot_general`."""
    source: str
    """`file:line` of the innermost frame outside libraries; empty if there is none."""


class Places:
    """Places of a module's operations, each location read once."""

    def __init__(self) -> None:
        self._known: dict[Any, Place] = {}

    def of(self, location: Any) -> Place:
        key = location.attr
        if key not in self._known:
            self._known[key] = _place(str(location))
        return self._known[key]


def _place(text: str) -> Place:
    name = NAME.match(text)
    frames = takewhile(lambda frame: frame[0] != CALLER, FRAME.findall(text))
    source = next((f"{file}:{line}" for file, line in frames if not LIBRARIES.search(file)), "")
    return Place(name[1] if name else "", source)


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of each dim of an operation's operands and results. Dims with a common factor are split together."""

    operands: list[list[list[int]]]
    results: list[list[list[int]]]
    summed: set[int]
    """Factors that the operation sums over, or reduces otherwise."""
    whole: set[int]
    """Factors that the operation needs unsplit."""


@dataclass(slots=True)
class Operation:
    name: str
    operands: list[int]
    results: list[int]
    place: Place
    rule: Rule | None = None

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

    def dim_of(self, axis: Axis) -> int | None:
        return next((dim for dim, axes in enumerate(self.axes) if axis in axes), None)


@dataclass
class Graph:
    """A program after the propagation: operations, and tensors by index."""

    mesh: dict[str, int]
    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    result_names: list[str] = field(default_factory=list)
    origins: dict[str, int] = field(default_factory=dict)
    """Origin's name, `constraint_3` or `mc_0` (a `shard_map`), to operation."""

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
    return formatting.spec(tensor.axes)


def name_of(graph: Graph, index: int) -> str:
    """Returns the name that the program gives a tensor, else its shape: `[4, 128, 512]`."""
    tensor = graph.tensors[index]
    return tensor.names[0] if tensor.names and tensor.names[0] else f"[{', '.join(map(str, tensor.shape))}]"


def at(source: str) -> str:
    """Returns ` at model.py:102`; empty without a source."""
    return f" at {formatting.short_source(source)}" if source else ""
