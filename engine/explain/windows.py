"""The elements that operations along a dim move: slices, pads, windows and rolls."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .attributes import owner_of
from .partitioned import Partitioned, shape_of

REDUCE_WINDOW = "stablehlo.reduce_window"
BLOCK = 128
"""Elements that the TPU's compiler adds up first in a sum up to each element (`ReduceWindowRewriter`)."""


class Window(NamedTuple):
    """Along one dim, element `i` of the result takes `size` elements of the operand from `i * stride - low` on, `step`
    apart, with `spread - 1` zeros between the operand's elements."""

    low: int
    stride: int = 1
    size: int = 1
    step: int = 1
    spread: int = 1
    is_ring: bool = False
    """The operand goes on with its begin after its end, as in a roll."""

    def taken(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the operand's elements that results `begin` to `end` take, also those beyond its ends."""
        first, last = begin * self.stride - self.low, (end - 1) * self.stride - self.low + (self.size - 1) * self.step
        return -(-first // self.spread), last // self.spread + 1

    def permutes(self, given: int, made: int, count: int) -> "list[Permute] | None":
        """Returns the collective permutes by which each of `count` devices gets what it takes; None if all of the dim
        is gathered instead (XLA's `ExchangeHaloAndGetValidData`). `given` and `made`: elements of the operand and of
        the result."""
        part, each = max(1, -(-given // count)), max(1, -(-made // count))
        taken = [self.taken(begin, min(begin + each, made)) for begin in range(0, made, each)]
        pieces = [piece for device, ends in enumerate(taken) for piece in self._pieces(device, *ends, given, part)]
        if self.is_ring or not pieces:
            return list(_by_distance(pieces, count))
        padded = [self.taken(device * each, (device + 1) * each) for device in range(count)]
        before = [device * part - begin for device, (begin, _) in enumerate(padded)]
        after = [end - (device + 1) * part for device, (_, end) in enumerate(padded)]
        if self.spread == 1 and max(*before, *after) > 2 * (padded[0][1] - padded[0][0]):
            return list(_in_turns(pieces, part, count))
        low, high = max(before[1:], default=0), max(after[:-1], default=0)
        if self.spread == 1 and max(low, high) > part and low + high + part >= part * count:
            return None
        bounds = -max(before), part + max(after)
        return list(_by_halos(low, high, bounds, part, count))

    def _pieces(self, device: int, begin: int, end: int, given: int, part: int) -> "Iterator[Piece]":
        """Yields what a device takes of each part; in a ring, parts go on past its ends."""
        first, last = (begin, end) if self.is_ring else (max(begin, 0), min(end, given))
        for other in range(first // part, -(-last // part)):
            within = max(first - other * part, 0), min(last - other * part, part)
            if within[0] < within[1]:
                yield Piece(other, device, other * part + within[0] - begin, *within)


Permute = tuple[int, list[tuple[int, int]]]
"""The elements that each device sends, and the pairs of source and target."""


class Piece(NamedTuple):
    """What one device takes of the part of another, or of its own: elements `first` to `last`."""

    source: int
    target: int
    offset: int
    """Elements that the device takes before these."""
    first: int
    last: int


def _by_distance(pieces: list[Piece], count: int) -> Iterator[Permute]:
    """All devices of a ring send to those at one distance, then to those at the next, as much as each needs."""
    sizes = {(piece.target - piece.source) % count: piece.last - piece.first for piece in pieces}
    for distance, size in sorted(sizes.items()):
        if distance:
            yield size, [(source, (source + distance) % count) for source in range(count)]


def _by_halos(low: int, high: int, bounds: tuple[int, int], part: int, count: int) -> Iterator[Permute]:
    """All devices send to those at one distance after the other all that lies between, as much as any of them needs
    (XLA's `ExchangeHalo`). `low` and `high`: elements that devices take before and after their own part at most.
    `bounds`: of what any of them takes, from the begin of its part."""
    for distance in range(1, 1 - -low // part):
        size = min(low - (distance - 1) * part, part) - max((1 - distance) * part - bounds[1], 0)
        if size > 0:
            yield size, [(source, source + distance) for source in range(count - distance)]
    for distance in range(1, 1 - -high // part):
        size = min(high - (distance - 1) * part, part) - max(bounds[0] - distance * part, 0)
        if size > 0:
            yield size, [(target + distance, target) for target in range(count - distance)]


def _in_turns(pieces: list[Piece], part: int, count: int) -> Iterator[Permute]:
    """Where devices take little from far away: in each turn each device sends the next piece that another needs, unless
    that one gets a piece already, or a short begin would be sent with a short end (XLA's `ExchangeHaloCompact`)."""
    waiting: list[list[Piece]] = [[] for _ in range(count)]
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        if piece.source != piece.target:
            waiting[piece.source].append(piece)
    while any(waiting):
        sent: dict[int, Piece] = {}
        first, last = part, 0
        for of_source in filter(None, waiting):
            piece = of_source[0]
            is_begin_and_end = (piece.first == 0 and last == part and piece.last < first) or (
                piece.last == part and first == 0 and last < piece.first
            )
            if not sent or not (piece.target in sent or is_begin_and_end):
                sent[piece.target] = of_source.pop(0)
                first, last = min(first, piece.first), max(last, piece.last)
        yield last - first, [(piece.source, piece.target) for piece in sent.values()]


def roll_of(op: Any) -> tuple[Any, int] | None:
    """Returns the value that a concatenation rolls along its dim, and by how much: it joins the end with the begin."""
    if op.name != "stablehlo.concatenate" or len(op.operands) != 2:
        return None
    parts = [part for value in op.operands if (part := owner_of(value)) is not None]
    if [part.name for part in parts] != ["stablehlo.slice"] * 2 or parts[0].operands[0] != parts[1].operands[0]:
        return None
    dim = number(op, "dimension")
    size = shape_of(parts[0].operands[0])[dim]
    begins, ends = ([numbers(part, name, [])[dim] for part in parts] for name in ("start_indices", "limit_indices"))
    is_roll = shape_of(op.results[0])[dim] == size and begins[0] == ends[1] and (begins[1], ends[0]) == (0, size)
    return (parts[0].operands[0], size - begins[0]) if is_roll else None


def windows_of(op: Any) -> dict[int, Window]:
    """The window along each dim of the operand that an operation moves; empty for an operation without any."""
    if roll := roll_of(op):
        return {number(op, "dimension"): Window(roll[1], is_ring=True)}
    rank = len(shape_of(op.operands[0])) if op.operands else 0
    ones = [1] * rank
    match op.name:
        case "stablehlo.slice":
            begins, strides = numbers(op, "start_indices", ones), numbers(op, "strides", ones)
            return {dim: Window(-begins[dim], strides[dim]) for dim in range(rank)}
        case "stablehlo.pad":
            low, between = numbers(op, "edge_padding_low", ones), numbers(op, "interior_padding", ones)
            return {dim: Window(low[dim], spread=between[dim] + 1) for dim in range(rank)}
        case name if name == REDUCE_WINDOW and len(op.results) == 1:
            sizes = numbers(op, "window_dimensions", ones)
            return _sliding(op, list(range(rank)), sizes, "window_dilations", "base_dilations")
        case "stablehlo.convolution":
            form, kernel = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"]), shape_of(op.operands[1])
            dims, sizes = list(form.input_spatial_dimensions), [kernel[dim] for dim in form.kernel_spatial_dimensions]
            found = _sliding(op, dims, sizes, "rhs_dilation", "lhs_dilation")
            return found if list(form.output_spatial_dimensions) == dims else {}
        case _:
            return {}


def in_blocks(program: Partitioned, op: Any, size: int) -> int:
    """Returns the bytes of the sums of blocks, and of blocks of these, of `size` bytes that a window reduces; `size` if
    the window is shorter than the dim."""
    windows, value = windows_of(op), op.operands[0]
    dim = max(windows, key=lambda dim: windows[dim].size)
    length = program.part(value, [[] for _ in shape_of(value)])[dim]
    while length > BLOCK and windows[dim].size >= length:
        blocks = -(-length // BLOCK)
        size, length = size * blocks // length, blocks
    return size


def _sliding(op: Any, dims: list[int], sizes: list[int], steps: str, spreads: str) -> dict[int, Window]:
    ones = [1] * len(dims)
    padding = ir.DenseIntElementsAttr(op.attributes["padding"]) if "padding" in op.attributes else [0] * 2 * len(dims)
    edges = [padding[2 * number] for number in range(len(dims))]
    others = (numbers(op, name, ones) for name in (steps, spreads))
    return dict(zip(dims, map(Window, edges, numbers(op, "window_strides", ones), sizes, *others), strict=True))


def numbers(op: Any, name: str, default: list[int]) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else default


def number(op: Any, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value
