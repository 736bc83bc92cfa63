"""The matrix products of a compiled program: the FLOPs that one device computes, for each part of the step."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..wire.descriptions import ProductInfo
from .array_types import arrays
from .dataflow import Dataflow, is_product
from .execution_counts import runs
from .module import Computation, Instruction, Module, number, numbers

REMAT = ("checkpoint", "rematted_computation")
"""Scopes that jax adds to op names for rematerialization."""
WORD = re.compile(r"(?:\w+\()*([A-Za-z_][\w.\-]*)\)*")
"""A part of an op name, without the transformations around it: `blocks` of `transpose(jvp(blocks))`."""
CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]')
LABELS = (r"\bdim_labels=(\w+)_", r"\bdim_labels=\w+_(\w+)->", r"\bdim_labels=\w+->(\w+)")
WINDOW = r"\bwindow=\{([^}]*)\}"
WINDOW_PART = re.compile(r"(\w+)=([\dx_\-]+)")

MAX_KERNEL = 10_000
"""Length of a kernel that is counted, along one dim."""


class Dim(NamedTuple):
    """The window of a convolution along one dim."""

    input: int
    """Length of the input."""
    kernel: int
    """Length of the kernel."""
    output: int
    """Length of the result."""
    pad: int = 0
    """Padding before the input; negative if the input is cut."""
    stride: int = 1
    """Input elements between the windows of two results."""
    dilation: int = 1
    """Dilation of the input."""
    kernel_dilation: int = 1
    """Dilation of the kernel."""


def scope(op_name: str, known: set[str] | None = None) -> str:
    """Returns the scope in an op name: `blocks/attention` of `jit(step)/transpose(jvp(blocks))/while/body/attention`.

    `known`: words to keep; None keeps all. The compiler's op names also have words that are no scopes.
    """
    found = (WORD.fullmatch(part) for part in op_name.split("/") if "jit(" not in part)
    words = [word[1] for word in found if word and word[1] not in REMAT]
    return "/".join(word for word in words if known is None or word in known)


def products(module: Module, written: Mapping[str, float | None]) -> list[ProductInfo]:
    """Returns the matrix products of a step by scope, those with most FLOPs first.

    `written`: scope to FLOPs of the step as its code is written; None if they depend on data. Those scopes are left
    out, and so are scopes that the code does not have. If the compiler only says of some product that it is in
    `blocks`, all of `blocks` is one part.
    """
    compiled = _compiled(module, written)
    coarse = sorted(set(compiled) - set(written))

    def part_of(name: str) -> str:
        return next((outer for outer in coarse if not outer or f"{name}/".startswith(f"{outer}/")), name)

    found: dict[str, ProductInfo | None] = {}
    for name, flops in written.items():
        part = part_of(name)
        known = found.get(part, ProductInfo(scope=part, flops=0.0, flops_per_device=0.0, source=""))
        found[part] = None if known is None or flops is None else replace(known, flops=known.flops + flops)
    for name, (flops, source) in sorted(compiled.items(), key=lambda each: each[1]):
        part = part_of(name)
        if known := found.get(part):
            found[part] = replace(known, flops_per_device=known.flops_per_device + flops, source=source)
    comparable = (info for info in found.values() if info and info.flops)
    return sorted(comparable, key=lambda info: -info.flops_per_device)


def _compiled(module: Module, written: Mapping[str, float | None]) -> dict[str, tuple[float, str]]:
    """Scope to the FLOPs of one device and the source line of the largest product, from the compiler's op names."""
    words = {word for name in written for word in name.split("/")}
    flow, times = Dataflow(module), runs(module)
    found: dict[str, list[tuple[float, str]]] = {}
    for where, product in module.instructions():
        if is_product(product) and (each := product_flops(where, product)) and (count := times[where.name]):
            related = list(_related(module, flow, where, product))
            names = [scope(_without_primitive(other.op_name), words) for other in related if other.op_name]
            name = next((name for name in names if name in written), max(names, key=len, default=""))
            source = next((line for other in related if (line := module.source(other))), "")
            found.setdefault(name, []).append((count * each, source))
    return {name: (sum(flops for flops, _ in each), max(each)[1]) for name, each in found.items()}


def _without_primitive(op_name: str) -> str:
    """An op name without its primitive; of a combined op name, the first one."""
    return op_name.partition(";")[0].rpartition("/")[0]


def _related(module: Module, flow: Dataflow, where: Computation, product: Instruction) -> Iterator[Instruction]:
    """Instructions whose metadata may name the product: itself, the fusion around it, its users and its operands."""
    yield product
    place, outermost = module.around(where) or (where, product)
    if outermost is not product:
        yield outermost
    yield from flow.users(place.name, outermost.name)
    yield from (found for name in outermost.operands if (found := place.instructions.get(name)))


def product_flops(where: Computation, product: Instruction) -> float | None:
    """Returns the FLOPs of a matrix product or convolution each time it runs; None if its shapes are not known."""
    operands = [where.instructions.get(name) for name in product.operands[:2]]
    shapes = [_shape(operand.type) for operand in (*operands, product) if operand]
    if len(shapes) != 3:
        return None
    left, right, out = shapes
    if "dim_labels=" in product.rest:
        return _convolution(product, *_forward(product, left, right, out))
    found = CONTRACTED.search(product.rest)
    contracted = numbers(found[1]) if found else []
    if any(dim >= len(left) for dim in contracted):
        return None
    return 2.0 * math.prod(out) * math.prod(left[dim] for dim in contracted)


def _forward(product: Instruction, *shapes: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Input, kernel and output of a convolution: in a library's gradients, by the forward window and labels."""
    left, right, out = shapes
    if "__cudnn$convBackwardInput" in product.rest:
        return out, right, left
    return (left, out, right) if "__cudnn$convBackwardFilter" in product.rest else (left, right, out)


def _shape(type_: str) -> list[int]:
    shapes = arrays(type_).shapes
    return shapes[0] if shapes else []


def _convolution(product: Instruction, left: Sequence[int], right: Sequence[int], out: Sequence[int]) -> float | None:
    labels = [product.attribute(pattern) or "" for pattern in LABELS]
    if [len(each) for each in labels] != [len(left), len(right), len(out)]:
        return None
    input_, kernel, output = (dict(zip(*pair, strict=True)) for pair in zip(labels, (left, right, out), strict=True))
    window = {key: each.split("x") for key, each in WINDOW_PART.findall(product.attribute(WINDOW) or "")}
    positions = 1
    for dim in map(str, range(len(left) - 2)):
        found = multiplied(Dim(input_[dim], kernel[dim], output[dim], *_window(window, int(dim))))
        if found is None:
            return None
        positions *= found
    return 2.0 * positions * output["b"] * output["f"] * kernel["i"]


def _window(window: Mapping[str, Sequence[str]], dim: int) -> Iterator[int]:
    """Padding before the input, stride, dilation of the input and of the kernel."""
    for key, default in (("pad", "0"), ("stride", "1"), ("lhs_dilate", "1"), ("rhs_dilate", "1")):
        given = window.get(key, ())
        text = given[dim].partition("_")[0] if dim < len(given) else default
        yield -number(text[1:]) if text.startswith("-") else number(text)


def multiplied(dim: Dim) -> int | None:
    """Returns the multiplications of a kernel element by an input element; None if the kernel is too long to count.

    Counts as XLA does (`HloCostAnalysis::HandleConvolution`), in time proportional to the kernel's length.
    """
    if dim.kernel > MAX_KERNEL or min(dim.stride, dim.dilation) < 1:
        return None
    return sum(_positions(dim, at * dim.kernel_dilation - dim.pad) for at in range(dim.kernel))


def _positions(dim: Dim, first: int) -> int:
    """Results that one kernel element contributes to.

    These are the `n` for which `first + n · stride` is a multiple of the dilation, within the dilated input.
    """
    common = math.gcd(dim.stride, dim.dilation)
    if first % common:
        return 0
    period = dim.dilation // common
    start = -first // common * pow(dim.stride // common, -1, period) % period
    lowest = max(0, -(first // dim.stride))
    highest = min(dim.output - 1, ((dim.input - 1) * dim.dilation - first) // dim.stride)
    return max(0, (highest - start) // period - (lowest - 1 - start) // period) if highest >= lowest else 0
