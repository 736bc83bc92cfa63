"""A propagated program as plain values: its tensors, their shardings, and from where each mesh axis came."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .locations import Place

Axis = str
"""A mesh axis; with `:(p)s` after its name only a part of it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How the dims of an operation's operands and results correspond. Dims with a common factor are split together."""

    operands: list[list[list[int]]]
    """For each operand and dim its factors."""
    results: list[list[list[int]]]
    """For each result and dim its factors."""
    summed: set[int]
    """Factors that the operation sums over, or reduces otherwise."""
    whole: set[int]
    """Factors that the operation needs unsplit."""


@dataclass(slots=True)
class Operation:
    """An operation of the program."""

    name: str
    """Such as `stablehlo.dot_general`."""
    operands: list[int]
    """Its operands, as indices of tensors."""
    results: list[int]
    """Its results, as indices of tensors."""
    place: Place
    """Where it comes from."""
    rule: Rule | None = None
    """None if its values are not split together."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the propagation: an operation passed a mesh axis from one tensor to another."""

    number: int
    """Steps are numbered in the order in which they were taken."""
    operation: int
    """The operation."""
    tensor: int
    """The tensor that passed the axis on."""
    role: str
    """What that tensor is to the operation: `operand-1`, `result-0`."""
    target: str
    """What the other tensor is to it."""


@dataclass(slots=True)
class Tensor:
    """A value of the program. What a loop carries is one tensor: its initial value, inside and after it."""

    shape: list[int]
    dtype: str
    axes: list[list[Axis]]
    """For each dim the mesh axes that split it."""
    operation: int | None = None
    """The operation that computes it; None for an argument."""
    result: int = 0
    """Which of the operation's results it is."""
    names: list[str] = field(default_factory=list)
    """Names that the program gives it."""
    uses: list[tuple[int, int]] = field(default_factory=list)
    """Operations that take it, and as which operand."""
    joined: list[int] = field(default_factory=list)
    """Tensors that control flow passes on as this one: a loop's initial value and the value after an iteration, what
    each branch returns, what a function is called with."""
    steps: dict[Axis, list[Step]] = field(default_factory=dict)
    """For each axis the steps that brought it."""
    asked: dict[Axis, str] = field(default_factory=dict)
    """For each axis where it was first asked for: `self`, or the name of an origin, such as `input: 2`."""

    def dim_of(self, axis: Axis) -> int | None:
        """Returns the dim that a mesh axis splits."""
        return next((dim for dim, axes in enumerate(self.axes) if axis in axes), None)


@dataclass
class Graph:
    """A program after the propagation."""

    mesh: dict[str, int]
    """Mesh axis to size."""
    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    """The program's arguments, as indices of tensors."""
    results: list[int] = field(default_factory=list)
    """The program's results, as indices of tensors."""
    result_names: list[str] = field(default_factory=list)
    """A name for each result."""
    origins: dict[str, int] = field(default_factory=dict)
    """Name of an origin to its operation: `constraint_3`, `mc_0` (a `shard_map`)."""

    def parts(self, axes: Sequence[Axis]) -> int:
        """Returns the number of parts that mesh axes split a dim into."""
        count = 1
        for axis in axes:
            _, colon, part = axis.partition(")")
            count *= int(part) if colon else self.mesh[axis]
        return count
