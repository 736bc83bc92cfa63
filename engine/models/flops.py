"""The operations of a function, counted in what jax traced of it: of models whose formula nobody has written, and of
steps as they are written, to compare what a compiled program does."""

import math
from collections.abc import Iterator
from typing import Any

from ..analysis.convolution import Dim, multiplied
from ..analysis.products import scope

Jaxpr = Any
"""What `jax.make_jaxpr` gives: some versions of jax have one class for it and some two."""


def flops(jaxpr: Jaxpr) -> float:
    """2 for each multiplication and addition of matrix products and convolutions; all else is left out, as it is in
    the formulas of papers. A `scan` counts by its length, a `while`, whose trips depend on data, once, and of the
    branches of a `cond` the longest."""
    return sum(map(_of_equation, jaxpr.eqns))


def flops_by_scope(jaxpr: Jaxpr, outer: str = "", times: float | None = 1.0) -> dict[str, float | None]:
    """Of a whole step, on however many devices, by the named scopes of the code; `outer` is the scope of `jaxpr`, and
    `times` says how often it runs. None where a scope has products whose number depends on data, or that are no
    `dot_general` and no convolution. Padding and dilation's zeros do not count."""
    found: dict[str, float | None] = {}
    for name, count in _scoped(jaxpr, outer, times):
        known = found.get(name, 0.0)
        found[name] = None if known is None or count is None else known + count
    return found


def _of_equation(equation: Any) -> float:
    name, parameters = equation.primitive.name, equation.params
    match name:
        case "dot_general":
            return _product(equation)
        case "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            return 2.0 * out.size * kernel.size / kernel.shape[parameters["dimension_numbers"].rhs_spec[0]]
        case "cond":
            return max(map(flops, parameters["branches"]))
        case _:
            inner = sum(map(flops, _inner(parameters)))
            return inner * (parameters["length"] if name == "scan" else 1)


def _scoped(jaxpr: Jaxpr, outer: str, times: float | None) -> Iterator[tuple[str, float | None]]:
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        here = f"{outer}/{equation.source_info.name_stack}"
        match name:
            case "dot_general":
                yield scope(here), None if times is None else times * _product(equation)
            case "conv_general_dilated":
                each = _convolution(equation)
                yield scope(here), None if times is None or each is None else times * each
            case "ragged_dot" | "ragged_dot_general":
                yield scope(here), None
            case "pallas_call":
                pass  # a compiler sees no products in it
            case _:
                for inner in _inner(parameters):
                    yield from flops_by_scope(inner, here, _times(name, parameters, times)).items()


def _times(name: str, parameters: dict[str, Any], outer: float | None) -> float | None:
    """How often what is in an equation runs, on all devices together where it is written for one of them."""
    match name:
        case _ if outer is None:
            return None
        case "cond" | "while":
            return None
        case "scan":
            return outer * parameters["length"]
        case "shard_map":
            return outer * math.prod(parameters["mesh"].shape[axis] for axis in parameters["newly_manual_axes"])
        case _:
            return outer


def _product(equation: Any) -> float:
    left, out = equation.invars[0].aval, equation.outvars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2.0 * out.size * math.prod(left.shape[dim] for dim in contracted)


def _convolution(equation: Any) -> float | None:
    parameters, labels = equation.params, equation.params["dimension_numbers"]
    (taken, kernel), out = (variable.aval.shape for variable in equation.invars), equation.outvars[0].aval.shape
    dims = zip(
        (taken[dim] for dim in labels.lhs_spec[2:]),
        (kernel[dim] for dim in labels.rhs_spec[2:]),
        (out[dim] for dim in labels.out_spec[2:]),
        (before for before, _ in parameters["padding"]),
        parameters["window_strides"],
        parameters["lhs_dilation"],
        parameters["rhs_dilation"],
        strict=True,
    )
    counted = [multiplied(Dim(*dim)) for dim in dims]
    if None in counted:
        return None
    batch, features = (out[dim] for dim in labels.out_spec[:2])
    return 2.0 * math.prod(filter(None, counted)) * batch * features * kernel[labels.rhs_spec[1]]


def _inner(parameters: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in parameters.values():
        yield from (each for each in (value if isinstance(value, tuple | list) else (value,)) if hasattr(each, "eqns"))
