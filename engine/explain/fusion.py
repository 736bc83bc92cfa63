"""Which operations XLA's fusion computes inside those that read their results, so that they need no memory."""

import re
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from .attributes import owner_of
from .graph import PRODUCT
from .reshards import is_uniform

FUSED = re.compile(
    r"stablehlo\.(abs|add|and|atan2|bitcast_convert|broadcast(_in_dim)?|cbrt|ceil|clamp|compare|complex|concatenate|"
    r"constant|convert|cosine|divide|dynamic_slice|exponential(_minus_one)?|floor|imag|iota|is_finite|log(_plus_one)?|"
    r"logistic|maximum|minimum|multiply|negate|not|or|pad|partition_id|popcnt|power|real|reduce_precision|remainder|"
    r"reshape|reverse|round_nearest_(afz|even)|rsqrt|select|shift_(left|right_arithmetic|right_logical)|sign|sine|"
    r"slice|sqrt|subtract|tanh?|transpose|xor)|sdy\.(all_slice|constant|propagation_barrier|sharding_constraint)"
)
"""Operations that are computed by those that read their results."""
ORDERS = ("stablehlo.reshape", "stablehlo.transpose")
EXPENSIVE = {
    f"stablehlo.{name}"
    for name in (
        *("atan2", "cbrt", "cosine", "divide", "exponential", "exponential_minus_one", "log", "log_plus_one"),
        *("logistic", "power", "remainder", "rsqrt", "sine", "sqrt", "tan", "tanh"),
    )
}
"""Operations that the CPU's compiler does not compute twice (XLA, `InstructionFusion::IsExpensive`)."""


def feeds_product(value: Any) -> bool:
    """Whether a computed value is an operand of a product, perhaps in another order."""
    if value.owner.operation.name in ORDERS:
        return False
    waiting = [value]
    while waiting:
        for op in (use.owner.operation for use in waiting.pop().uses):
            if op.name == PRODUCT:
                return True
            waiting += list(op.results) if op.name in ORDERS else []
    return False


def adds_points(op: Any) -> bool:
    """Whether a scatter adds one element for each index to a constant, as the gradient of `take_along_axis` does: the
    TPU's compiler compares indices instead."""
    dims = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    maker = owner_of(op.operands[0])
    return len(op.results) == 1 and not dims.update_window_dims and maker is not None and is_uniform(maker)
