"""Writes broadcasts as the compiler's own form has them: one that repeats no element is a reshape.

Shardy carries axes across a reshape before those across a broadcast. Without this, a value may take an axis on a dim
where the compiler has it on another.
"""

import math
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .names import FRONTEND
from .operations import operations

NAME = "stablehlo.broadcast_in_dim"


def normalize_broadcasts(module: Any) -> None:
    """Rewrites the broadcasts of a module of StableHLO in place: reshapes, or a reshape and a broadcast of new dims."""
    for operation in operations(module, NAME):
        _rewrite(operation)


def _rewrite(operation: Any) -> None:
    value, result = operation.operands[0], operation.results[0]
    before, after = (list(ir.RankedTensorType(each.type).shape) for each in (value, result))
    dims = list(ir.DenseI64ArrayAttr(operation.attributes["broadcast_dimensions"]))
    kept = [dim for dim, size in zip(dims, before, strict=True) if size == after[dim]]
    if dims != sorted(dims) or (len(kept) == len(dims) and math.prod(before) != math.prod(after)):
        return
    with operation.location, ir.InsertionPoint(operation):
        if math.prod(before) == math.prod(after):
            new = stablehlo.reshape(result.type, value)
        else:
            element = ir.RankedTensorType(value.type).element_type
            squeezed = ir.RankedTensorType.get([after[dim] for dim in kept], element)
            new = stablehlo.broadcast_in_dim(result.type, stablehlo.reshape(squeezed, value), kept)
    if FRONTEND in operation.attributes:
        new.owner.attributes[FRONTEND] = operation.attributes[FRONTEND]
    result.replace_all_uses_with(new)
    operation.erase()
