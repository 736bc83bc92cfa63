"""The operations of a function, counted in what jax traced of it: for models whose formula nobody has written."""

import math
from collections.abc import Iterator
from typing import Any

Jaxpr = Any
"""What `jax.make_jaxpr` gives: some versions of jax have one class for it and some two."""


def flops(jaxpr: Jaxpr) -> float:
    """2 for each multiplication and addition of matrix products and convolutions; all else is left out, as it is in
    the formulas of papers. A `scan` counts by its length, a `while`, whose trips depend on data, once, and of the
    branches of a `cond` the longest."""
    return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: Any) -> float:
    name, parameters = equation.primitive.name, equation.params
    match name:
        case "dot_general":
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            (contracted, _), _ = parameters["dimension_numbers"]
            return 2.0 * out.size * math.prod(left.shape[dim] for dim in contracted)
        case "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            return 2.0 * out.size * kernel.size / kernel.shape[parameters["dimension_numbers"].rhs_spec[0]]
        case "cond":
            return max(map(flops, parameters["branches"]))
        case _:
            inner = sum(map(flops, _inner(parameters)))
            return inner * (parameters["length"] if name == "scan" else 1)


def _inner(parameters: dict[str, Any]) -> Iterator[Jaxpr]:
    return (value for value in parameters.values() if hasattr(value, "eqns"))
