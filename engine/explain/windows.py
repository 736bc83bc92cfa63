"""The elements that operations along a dim move: slices, pads, windows and rolls."""

from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .partitioned import shape_of


class Window(NamedTuple):
    """Along one dim, element `i` of the result takes `size` elements of the operand from `i * stride - low` on, `step`
    apart, with `spread - 1` zeros between the operand's elements."""

    low: int
    stride: int = 1
    size: int = 1
    step: int = 1
    spread: int = 1

    def taken(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the operand's elements that results `begin` to `end` take, also those beyond its ends."""
        first, last = begin * self.stride - self.low, (end - 1) * self.stride - self.low + (self.size - 1) * self.step
        return -(-first // self.spread), last // self.spread + 1


def rolled(op: Any) -> int | None:
    """Returns by how many elements a concatenation rolls a value along its dim: it joins the end with the begin."""
    if op.name != "stablehlo.concatenate" or len(op.operands) != 2:
        return None
    parts = [value.owner.operation for value in op.operands if not isinstance(value.owner, ir.Block)]
    if [part.name for part in parts] != ["stablehlo.slice"] * 2 or parts[0].operands[0] != parts[1].operands[0]:
        return None
    dim = number(op, "dimension")
    size = shape_of(parts[0].operands[0])[dim]
    begins, ends = ([numbers(part, name, [])[dim] for part in parts] for name in ("start_indices", "limit_indices"))
    is_roll = shape_of(op.results[0])[dim] == size and begins[0] == ends[1] and (begins[1], ends[0]) == (0, size)
    return size - begins[0] if is_roll else None


def windows_of(op: Any) -> dict[int, Window]:
    """The window along each dim of the first operand that an operation moves; empty for an operation without any."""
    rank = len(shape_of(op.operands[0]))
    ones = [1] * rank
    match op.name:
        case "stablehlo.slice":
            begins, strides = numbers(op, "start_indices", []), numbers(op, "strides", ones)
            return {dim: Window(-begins[dim], strides[dim]) for dim in range(rank)}
        case "stablehlo.pad":
            low, between = numbers(op, "edge_padding_low", []), numbers(op, "interior_padding", [])
            return {dim: Window(low[dim], spread=between[dim] + 1) for dim in range(rank)}
        case "stablehlo.reduce_window" if len(op.results) == 1:
            names = ("window_strides", "window_dimensions", "window_dilations", "base_dilations")
            strides, sizes, steps, spreads = (numbers(op, name, ones) for name in names)
            edges = _edges(op, rank)
            return {dim: Window(edges[dim], strides[dim], sizes[dim], steps[dim], spreads[dim]) for dim in range(rank)}
        case "stablehlo.convolution":
            return _windows_of_convolution(op)
        case _:
            return {}


def _windows_of_convolution(op: Any) -> dict[int, Window]:
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial, kernel = list(dims.input_spatial_dimensions), shape_of(op.operands[1])
    ones = [1] * len(spatial)
    strides, steps, spreads = (numbers(op, name, ones) for name in ("window_strides", "rhs_dilation", "lhs_dilation"))
    edges, sizes = _edges(op, len(spatial)), [kernel[dim] for dim in dims.kernel_spatial_dimensions]
    if list(dims.output_spatial_dimensions) != spatial:
        return {}
    windows = map(Window, edges, strides, sizes, steps, spreads)
    return dict(zip(spatial, windows, strict=True))


def _edges(op: Any, rank: int) -> list[int]:
    """The padding before each dim."""
    if "padding" not in op.attributes:
        return [0] * rank
    flat = ir.DenseIntElementsAttr(op.attributes["padding"])
    return [flat[2 * dim] for dim in range(rank)]


def numbers(op: Any, name: str, default: list[int]) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else default


def number(op: Any, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value
