"""The elements that operations along a dim move: slices, pads, windows and rolls."""

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

    def sent(self, given: int, made: int, count: int) -> dict[int, int]:
        """Returns how many elements each of `count` devices sends, by the distance from the device that takes them.
        `given` and `made`: elements of the operand and of the result."""
        part, each = max(1, -(-given // count)), -(-made // count)
        rows: dict[int, tuple[int, int]] = {}
        for device in range(-(-made // each) if made else 0):
            begin, end = self.taken(device * each, min((device + 1) * each, made))
            if not self.is_ring:
                begin, end = max(begin, 0), min(end, given)
            for other in range(begin // part, -(-end // part)):
                distance = (other - device) % count if self.is_ring else other - device
                first, last = max(begin - other * part, 0), min(end - other * part, part)
                known = rows.get(distance, (first, last))
                rows[distance] = min(first, known[0]), max(last, known[1])
        return {distance: last - first for distance, (first, last) in sorted(rows.items()) if distance and last > first}


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
    """Returns the bytes of the sums of blocks, and of blocks of these, of `size` bytes that a window reduces."""
    windows, value = windows_of(op), op.operands[0]
    dim = max(windows, key=lambda dim: windows[dim].size)
    length = program.part(value, [[] for _ in shape_of(value)])[dim]
    while length > BLOCK:
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
