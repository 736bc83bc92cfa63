"""Evaluates a traced function and records what its equations compute, also those inside loops and calls.

It walks the jaxpr as in jax's guide "Writing custom Jaxpr interpreters". What is kept of a value is a result of the
program: no callback leaves the devices, and the program runs on any number of processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Literal

CALLS = ("jit", "remat2", "custom_jvp_call", "custom_vjp_call", "closed_call", "eval_jaxpr")
"""Primitives that call a jaxpr once with their inputs."""


@dataclass(frozen=True, eq=False)
class Loop:
    """A `scan` that was evaluated."""

    number: int
    """Of the first operation in its body."""
    equation: Any
    outer: "Loop | None"
    """The loop around it."""
    inputs: "Split"
    """References of its inputs."""
    results: list["Reference"] = field(default_factory=list)
    """References of what the body returns: the carry, then what is stacked."""

    @property
    def length(self) -> int:
        return self.equation.params["length"]

    @property
    def turns(self) -> range:
        """The indices of the turns, in the order in which they run."""
        return range(self.length)[:: -1 if self.equation.params["reverse"] else 1]


def loops(innermost: Loop | None) -> list[Loop]:
    """Returns a loop and those around it, outermost first."""
    return [] if innermost is None else [*loops(innermost.outer), innermost]


@dataclass(frozen=True, eq=False)
class Operation:
    """An equation other than a call or a loop."""

    number: int
    """Counts the operations in the order in which they are traced."""
    equation: Any
    scope: str
    """Named scopes around it, outermost first: `blocks/attention`."""
    inputs: list["Reference"]
    loop: Loop | None
    """The loop in whose body it is."""

    @property
    def name(self) -> str:
        return self.equation.primitive.name

    @property
    def given_name(self) -> str | None:
        """The name that `checkpoint_name` gives to the value; None for another operation."""
        return self.equation.params["name"] if self.name == "name" else None


class Result(NamedTuple):
    """An output of an operation."""

    operation: Operation
    output: int


class Argument(NamedTuple):
    """An argument of the function."""

    position: int


class OfTurn(NamedTuple):
    """What a turn of a loop takes: the carry of the turn before, or a slice of what is outside."""

    loop: Loop
    is_carry: bool
    position: int
    """In its carry, or in its sliced inputs."""


class OfLoop(NamedTuple):
    """What a loop returns: the last turn's carry, or the stacked results of all turns."""

    loop: Loop
    position: int


class Constant(NamedTuple):
    value: Any


Reference = Result | Argument | OfTurn | OfLoop | Constant


def depth(value: Reference) -> int:
    """Returns the number of loops around the place where a value is known."""
    match value:
        case Result(operation):
            return len(loops(operation.loop))
        case OfTurn(loop):
            return len(loops(loop))
        case OfLoop(loop):
            return len(loops(loop.outer))
        case _:
            return 0


Keep = Callable[[Operation, int, jax.Array], Any]
"""Maps an operation, the index of an output and its value to what is kept, a pytree of arrays, or to None."""


class Split(NamedTuple):
    """Inputs of a loop: those that each turn takes whole, its carry, and those that are sliced."""

    consts: list[Any]
    carry: list[Any]
    xs: list[Any]

    @classmethod
    def of(cls, scan: Any, inputs: Sequence[Any]) -> "Split":
        """Splits the inputs of a `scan`: its parameters that say so differ between versions of jax. What has a dim more
        outside than in the body is sliced, or stacked."""

        def sliced(outside: Sequence[Any], inside: Sequence[Any]) -> int:
            return sum(each.aval.ndim != aval.ndim for each, aval in zip(outside, inside, strict=True))

        body = scan.params["jaxpr"]
        carry = len(scan.outvars) - sliced(scan.outvars, body.out_avals)
        start = len(inputs) - sliced(scan.invars, body.in_avals)
        return cls(list(inputs[: start - carry]), list(inputs[start - carry : start]), list(inputs[start:]))


class Value(NamedTuple):
    """A value while it is evaluated, and where it comes from."""

    value: Any
    origin: Reference


class Recorder:
    """Evaluates a function once, inside `jit`."""

    def __init__(self, traced: ClosedJaxpr, keep: Keep) -> None:
        self._traced, self._keep = traced, keep
        self.operations: list[Operation] = []
        self.outputs: list[Reference] = []
        """References of the function's outputs."""

    def evaluate(self, arguments: Sequence[Any]) -> dict[tuple[int, int], Any]:
        """Evaluates the function on flat arguments. Returns what `keep` keeps, by the operation's number and the index
        of its output, with a dim in front for each loop around it."""
        kept: dict[tuple[int, int], Any] = {}
        given = [Value(value, Argument(index)) for index, value in enumerate(arguments)]
        found = self._evaluate(self._traced.jaxpr, self._traced.consts, given, "", None, kept)
        self.outputs = [each.origin for each in found]
        return kept

    def _evaluate(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value], scope: str, loop: Loop | None, kept: Any
    ) -> list[Value]:
        known = [*(Value(const, Constant(const)) for const in consts), *inputs]
        values: dict[Any, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), known, strict=True))

        def read(variable: Any) -> Value:
            is_literal = isinstance(variable, Literal)
            return Value(variable.val, Constant(variable.val)) if is_literal else values[variable]

        for equation in jaxpr.eqns:
            own = f"{scope}/{equation.source_info.name_stack}".strip("/")
            found = self._apply(equation, [*map(read, equation.invars)], own, loop, kept)
            values |= zip(equation.outvars, found, strict=True)
        return [*map(read, jaxpr.outvars)]

    def _apply(self, equation: Any, inputs: list[Value], scope: str, loop: Loop | None, kept: Any) -> list[Value]:
        parameters = equation.params
        if equation.primitive.name == "scan":
            return self._scan(equation, inputs, scope, loop, kept)
        if equation.primitive.name in CALLS:
            inner = parameters["jaxpr"] if "jaxpr" in parameters else parameters["call_jaxpr"]
            return self._evaluate(
                getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs, scope, loop, kept
            )
        operation = Operation(len(self.operations), equation, scope, [each.origin for each in inputs], loop)
        self.operations.append(operation)
        with equation.ctx.manager:  # the mesh, whose axis types may be others inside `auto_axes`
            found = equation.primitive.bind(
                *(each.value for each in inputs), **equation.primitive.get_bind_params(parameters)
            )
            values = found if equation.primitive.multiple_results else [found]
            for index, value in enumerate(values):
                if (each := self._keep(operation, index, value)) is not None:
                    kept[operation.number, index] = each
        return [Value(value, Result(operation, index)) for index, value in enumerate(values)]

    def _scan(self, scan: Any, inputs: list[Value], scope: str, outer: Loop | None, kept: Any) -> list[Value]:
        body, split = scan.params["jaxpr"], Split.of(scan, inputs)
        loop = Loop(len(self.operations), scan, outer, Split(*([each.origin for each in part] for part in split)))

        def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], tuple[list[Any], dict[tuple[int, int], Any]]]:
            del self.operations[loop.number :]  # jax may trace a body twice
            inside: dict[tuple[int, int], Any] = {}
            own = [Value(value, OfTurn(loop, True, index)) for index, value in enumerate(carry)]
            own += [Value(value, OfTurn(loop, False, index)) for index, value in enumerate(xs)]
            found = self._evaluate(body.jaxpr, body.consts, [*split.consts, *own], scope, loop, inside)
            loop.results[:] = [each.origin for each in found]
            values = [each.value for each in found]
            return values[: len(carry)], (values[len(carry) :], inside)

        start, xs = ([each.value for each in part] for part in (split.carry, split.xs))
        carry, (stacked, inside) = jax.lax.scan(turn, start, xs, loop.length, scan.params["reverse"])
        kept |= inside
        return [Value(value, OfLoop(loop, index)) for index, value in enumerate([*carry, *stacked])]
