"""The matrix products of a compiled program: what one device computes of them, part by part of the step."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ..wire.descriptions import ProductInfo
from .convolution import Dim, multiplied
from .dataflow import Dataflow, is_product
from .execution_counts import runs
from .hlo import Computation, Instruction, Module, arrays, number, numbers

REMAT = ("checkpoint", "rematted_computation")
"""What jax calls the scope of what it computes again."""
WORD = re.compile(r"(?:\w+\()*([A-Za-z_][\w.\-]*)\)*")
"""A part of an op name, out of the transformations that stand around it."""
CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]')
LABELS = (r"\bdim_labels=(\w+)_", r"\bdim_labels=\w+_(\w+)->", r"\bdim_labels=\w+->(\w+)")
WINDOW = r"\bwindow=\{([^}]*)\}"
WINDOW_PART = re.compile(r"(\w+)=([\dx_\-]+)")


def scope(op_name: str, known: set[str] | None = None) -> str:
    """`blocks/attention` of `jit(step)/transpose(jvp(blocks))/while/body/attention`: what the code calls this part.

    `known`: the words that it may consist of; a compiler's op names have others besides.
    """
    found = (WORD.fullmatch(part) for part in op_name.split("/") if "jit(" not in part)
    words = [word[1] for word in found if word and word[1] not in REMAT]
    return "/".join(word for word in words if known is None or word in known)


def products(module: Module, written: Mapping[str, float | None]) -> list[ProductInfo]:
    """By scope, the one with most operations first. `written`: the operations of the step as its code has them, by
    scope; None where that depends on data: these are left out, and so is what the code does not have.

    Where the compiler says of a product only that it belongs to `blocks`, all of `blocks` is one part.
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
    told = (info for info in found.values() if info and info.flops)
    return sorted(told, key=lambda info: -info.flops_per_device)


def _compiled(module: Module, written: Mapping[str, float | None]) -> dict[str, tuple[float, str]]:
    """The operations of one device and the source of the largest, by the scope that the compiler tells."""
    words = {word for name in written for word in name.split("/")}
    flow, times = Dataflow(module), runs(module)
    found: dict[str, list[tuple[float, str]]] = {}
    for where, product in module.instructions():
        if is_product(product) and (each := _flops(where, product)) and (count := times[where.name]):
            telling = list(_telling(flow, where, product))
            names = [scope(_parts(told.op_name), words) for told in telling if told.op_name]
            name = next((name for name in names if name in written), max(names, key=len, default=""))
            source = next((line for told in telling if (line := module.source(told))), "")
            found.setdefault(name, []).append((count * each, source))
    return {name: (sum(flops for flops, _ in each), max(each)[1]) for name, each in found.items()}


def _parts(op_name: str) -> str:
    """Without the primitive, and of a combined one the first."""
    return op_name.partition(";")[0].rpartition("/")[0]


def _telling(flow: Dataflow, where: Computation, product: Instruction) -> Iterator[Instruction]:
    """Those that may say what it is: itself, the fusion around it, what takes their result, what they take."""
    yield product
    around = flow.callers.get(where.name)
    if around and around[1].opcode == "fusion":
        yield around[1]
    place, outermost = around if around and around[1].opcode == "fusion" else (where, product)
    yield from flow.users(place.name, outermost.name)
    yield from (found for name in outermost.operands if (found := place.instructions.get(name)))


def _flops(where: Computation, product: Instruction) -> float | None:
    operands = [where.instructions.get(name) for name in product.operands[:2]]
    shapes = [_shape(operand.type) for operand in (*operands, product) if operand]
    if len(shapes) != 3:
        return None
    left, right, out = shapes
    if product.opcode == "convolution":
        return _convolution(product, left, right, out)
    found = CONTRACTED.search(product.rest)
    contracted = numbers(found[1]) if found else []
    if any(dim >= len(left) for dim in contracted):
        return None
    return 2.0 * math.prod(out) * math.prod(left[dim] for dim in contracted)


def _shape(type_: str) -> list[int]:
    """Of the first array, where it is a tuple."""
    shapes = arrays(type_).shapes
    return shapes[0] if shapes else []


def _convolution(product: Instruction, left: Sequence[int], right: Sequence[int], out: Sequence[int]) -> float | None:
    labels = [product.attribute(pattern) or "" for pattern in LABELS]
    if [len(each) for each in labels] != [len(left), len(right), len(out)]:
        return None
    taken, kernel, made = (dict(zip(*pair, strict=True)) for pair in zip(labels, (left, right, out), strict=True))
    window = {key: each.split("x") for key, each in WINDOW_PART.findall(product.attribute(WINDOW) or "")}
    positions = 1
    for dim in map(str, range(len(left) - 2)):
        found = multiplied(Dim(taken[dim], kernel[dim], made[dim], *_window(window, int(dim))))
        if found is None:
            return None
        positions *= found
    return 2.0 * positions * made["b"] * made["f"] * kernel["i"]


def _window(window: Mapping[str, Sequence[str]], dim: int) -> Iterator[int]:
    """Padding before, stride, dilation of the input and of the kernel."""
    for key, default in (("pad", "0"), ("stride", "1"), ("lhs_dilate", "1"), ("rhs_dilate", "1")):
        given = window.get(key, ())
        text = given[dim].partition("_")[0] if dim < len(given) else default
        yield -number(text[1:]) if text.startswith("-") else number(text)
