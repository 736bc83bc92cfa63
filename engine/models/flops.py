"""Counts the FLOPs of a function in its jaxpr: for models without a formula, and to check compiled programs against."""

import math
from collections.abc import Iterator
from typing import Any

from ..hlo.products import Dim, multiplied, scope

Jaxpr = Any
"""A jaxpr, open or closed: the classes differ between versions of jax. jax traces a function once: all its calls share
a jaxpr, which is counted once here, too."""
Scoped = dict[str, float | None]


def flops(jaxpr: Jaxpr) -> float:
    """Returns the FLOPs of matrix products and convolutions, 2 per multiply-add. A `scan` counts by its length, a
    Pallas kernel by its grid, also what a mask lets it skip, a `while` or a dim of a grid that depends on data once,
    and a `cond` by its costliest branch. Zeros of padding count, those between the elements of a transposed
    convolution do not."""
    return _flops(jaxpr, {})


def flops_by_scope(jaxpr: Jaxpr) -> Scoped:
    """Returns a step's FLOPs on all devices by named scope, None where the count depends on data or products are
    neither `dot_general` nor convolutions. Multiplications by zeros of padding and dilation do not count."""
    return _by_scope(jaxpr, {})


def kernel_flops(jaxpr: Jaxpr) -> dict[str, float]:
    """Returns the FLOPs in a call of each Pallas kernel by its name, ÷ the elements of its largest operand."""
    found: dict[str, float] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            elements = max(each.aval.size for each in equation.invars)
            found[equation.params["name"]] = _equation_flops(equation, {}) / elements
            continue
        for inner in _inner_jaxprs(equation.params):
            found |= kernel_flops(inner)
    return found


def _flops(jaxpr: Jaxpr, known: dict[int, float]) -> float:
    if id(jaxpr) not in known:
        known[id(jaxpr)] = sum(_equation_flops(each, known) for each in jaxpr.eqns)
    return known[id(jaxpr)]


def _by_scope(jaxpr: Jaxpr, known: dict[int, Scoped]) -> Scoped:
    if id(jaxpr) not in known:
        found: Scoped = {}
        for name, count in (each for equation in jaxpr.eqns for each in _scoped(equation, known)):
            before = found.get(name, 0.0)
            found[name] = None if before is None or count is None else before + count
        known[id(jaxpr)] = found
    return known[id(jaxpr)]


def _equation_flops(equation: Any, known: dict[int, float]) -> float:
    name, parameters = equation.primitive.name, equation.params
    match name:
        case "dot_general":
            return _dot_flops(equation)
        case "ragged_dot_general":
            return _ragged_flops(equation)
        case "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            features = kernel.shape[parameters["dimension_numbers"].rhs_spec[0]]
            return 2.0 * out.size * kernel.size / features / math.prod(parameters["lhs_dilation"])
        case "cond":
            return max(_flops(each, known) for each in parameters["branches"])
        case "pallas_call":
            programs = math.prod(size for size in parameters["grid_mapping"].grid if isinstance(size, int))
            return programs * _flops(parameters["jaxpr"], known)
        case _:
            inner = sum(_flops(each, known) for each in _inner_jaxprs(parameters))
            return inner * (parameters["length"] if name == "scan" else 1)


def _scoped(equation: Any, known: dict[int, Scoped]) -> Iterator[tuple[str, float | None]]:
    """Yields scopes with their FLOPs, those in the equation's inner jaxprs below its own."""
    name, parameters = equation.primitive.name, equation.params
    here = str(equation.source_info.name_stack)
    match name:
        case "dot_general":
            yield scope(here), _dot_flops(equation)
        case "conv_general_dilated":
            yield scope(here), _convolution_flops(equation)
        case "ragged_dot_general":
            yield scope(here), None
        case "pallas_call":
            pass  # its products are not in the compiled text either
        case _:
            times = _runs(name, parameters)
            for inner in _inner_jaxprs(parameters):
                for below, count in _by_scope(inner, known).items():
                    yield scope(f"{here}/{below}"), None if times is None or count is None else times * count


def _runs(name: str, parameters: dict[str, Any]) -> float | None:
    """How often an equation's inner jaxpr runs, None if unknown. The body of a `shard_map` runs once per device."""
    match name:
        case "cond" | "while":
            return None
        case "scan":
            return parameters["length"]
        case "shard_map":
            return math.prod(parameters["mesh"].shape[axis] for axis in parameters["newly_manual_axes"])
        case _:
            return 1.0


def _dot_flops(equation: Any) -> float:
    left, out = equation.invars[0].aval, equation.outvars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2.0 * out.size * math.prod(left.shape[dim] for dim in contracted)


def _ragged_flops(equation: Any) -> float:
    """The FLOPs if all rows are in groups: each meets the matrix of its own group."""
    left, right = (variable.aval for variable in equation.invars[:2])
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    shared = {*contracted, *batch, *numbers.rhs_group_dimensions}
    return 2.0 * left.size * math.prod(size for dim, size in enumerate(right.shape) if dim not in shared)


def _convolution_flops(equation: Any) -> float | None:
    parameters, labels = equation.params, equation.params["dimension_numbers"]
    (inputs, kernel), out = (variable.aval.shape for variable in equation.invars), equation.outvars[0].aval.shape
    dims = zip(
        (inputs[dim] for dim in labels.lhs_spec[2:]),
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


def _inner_jaxprs(parameters: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in parameters.values():
        yield from (each for each in (value if isinstance(value, tuple | list) else (value,)) if hasattr(each, "eqns"))
