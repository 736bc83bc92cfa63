"""FLOPs of a device in a step: of the products in the partitioned program, and of the kernels that it calls."""

import math
from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .exchanges import KERNEL, target
from .graph import CONVOLUTION, CUSTOM_CALL, PRODUCTS
from .partitioned import Partitioned, shape_of
from .windows import numbers

NAME = "kernel_name"


class Products:
    def __init__(self, program: Partitioned, kernels: Mapping[str, float], computed: float) -> None:
        """`kernels`: FLOPs of a call for each element of its largest operand. `computed`: the share of them that a
        kernel does not skip."""
        self._kernels = {name: count * computed for name, count in kernels.items()}
        with program.module.context:
            self._found = [(op, times or 1) for op, times in program.operations() if op.name in PRODUCTS or _name(op)]

    def flops(self, program: Partitioned) -> float:
        """Returns the FLOPs of a device in the same program for any sizes: 2 per multiply-add."""
        return sum(times * self._of(program, op) for op, times in self._found)

    def _of(self, program: Partitioned, op: Any) -> float:
        def elements(value: Any) -> float:
            return program.bytes(value, program.layout(value)) / program.itemsize(value)

        if name := _name(op):
            return self._kernels.get(name, 0.0) * max(map(elements, op.operands))
        left, right = op.operands
        out = op.results[0]
        if op.name == CONVOLUTION:
            dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            features = shape_of(right)[dims.kernel_output_feature_dimension]
            spread = math.prod(numbers(op, "lhs_dilation", [1]))  # zeros between elements do not count
            return 2 * elements(out) * math.prod(shape_of(right)) / features / spread
        batch = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"]).lhs_batching_dimensions
        parts = program.part(left, program.layout(left))
        once = math.prod(parts[dim] for dim in batch) or 1  # [b, m, k] · [b, k, n], perhaps of no batches
        return 2 * math.sqrt(elements(left) * elements(right) * elements(out) / once)


def _name(op: Any) -> str:
    if op.name != CUSTOM_CALL or target(op) != KERNEL or NAME not in op.attributes:
        return ""
    return ir.StringAttr(op.attributes[NAME]).value
