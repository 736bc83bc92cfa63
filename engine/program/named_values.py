"""Evaluates a traced function and collects its named values, also those inside loops and calls.

It walks the jaxpr as in jax's guide "Writing custom Jaxpr interpreters", so that the values come out as results: no
callback leaves the devices, and the program runs on any number of processes.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

Reduced = Any
Reduce = Callable[[str, jax.Array], Reduced]
"""Maps a name and its value to what is kept of it: a pytree of arrays."""
Found = dict[str, list[Reduced]]
"""By name, what is kept of the value's occurrences, each with a dim in front."""


def evaluate(
    traced: ClosedJaxpr, arguments: Sequence[Any], reduce: Reduce, names: Collection[str] | None = None
) -> dict[str, Reduced]:
    """Evaluates a function on flat `arguments` and returns what `reduce` keeps of each value that `checkpoint_name`
    names, or of those of these `names`, with a dim in front: the value's occurrences in order, such as a block's in
    each turn of a loop."""
    found: Found = {}

    def keep(name: str, value: jax.Array) -> Reduced:
        return reduce(name, value) if names is None or name in names else None

    _evaluate(traced.jaxpr, traced.consts, arguments, keep, found)
    return {name: value for name, value in _joined(found).items() if value is not None}


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], reduce: Reduce, found: Found) -> list[Any]:
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
    for equation in jaxpr.eqns:
        inputs = [each.val if isinstance(each, Literal) else values[each] for each in equation.invars]
        outputs = _apply(equation, inputs, reduce, found)
        values |= zip(equation.outvars, outputs, strict=True)
    return [each.val if isinstance(each, Literal) else values[each] for each in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any], reduce: Reduce, found: Found) -> Sequence[Any]:
    match equation.primitive.name:
        case "name":
            name = equation.params["name"]
            kept = reduce(name, inputs[0])
            found.setdefault(name, []).append(jax.tree.map(lambda x: x[None], kept))
            return inputs
        case "scan":
            return _scan(equation, inputs, reduce, found)
        case _:
            inner = called(equation)
            if inner is not None:
                return _evaluate(inner.jaxpr, inner.consts, inputs, reduce, found)
            return bind(equation, inputs)


def called(equation: Any) -> ClosedJaxpr | None:
    """Returns what an equation calls once with its inputs; None if it is a primitive operation or a loop."""
    if equation.primitive.name not in ("jit", "pjit", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"):
        return None
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def bind(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Applies an equation's primitive to other inputs."""
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    return outputs if equation.primitive.multiple_results else [outputs]


class Split(NamedTuple):
    """How the inputs of a loop are split: into those that each turn takes whole, its carry, and a slice for a turn."""

    consts: list[Any]
    carry: list[Any]
    xs: list[Any]


def split_inputs(scan: Any, inputs: Sequence[Any]) -> Split:
    """Splits the inputs of a `scan` equation: its parameters that say so differ between versions of jax. What has a
    dim more outside than in the body is sliced, or stacked."""

    def sliced(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(each.aval.ndim != aval.ndim for each, aval in zip(outside, inside, strict=True))

    body = scan.params["jaxpr"]
    carry = len(scan.outvars) - sliced(scan.outvars, body.out_avals)
    start = len(inputs) - sliced(scan.invars, body.in_avals)
    return Split(list(inputs[: start - carry]), list(inputs[start - carry : start]), list(inputs[start:]))


def _scan(scan: Any, inputs: list[Any], reduce: Reduce, found: Found) -> list[Any]:
    body, split = scan.params["jaxpr"], split_inputs(scan, inputs)

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], tuple[list[Any], dict[str, Reduced]]]:
        inside: Found = {}
        outputs = _evaluate(body.jaxpr, body.consts, [*split.consts, *carry, *xs], reduce, inside)
        return outputs[: len(carry)], (outputs[len(carry) :], _joined(inside))

    length, is_reversed = scan.params["length"], scan.params["reverse"]
    carry, (stacked, inside) = jax.lax.scan(step, split.carry, split.xs, length, is_reversed)
    for name, value in inside.items():
        found.setdefault(name, []).append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), value))
    return [*carry, *stacked]


def _joined(found: Found) -> dict[str, Reduced]:
    return {name: jax.tree.map(lambda *each: jnp.concatenate(each), *values) for name, values in found.items()}
