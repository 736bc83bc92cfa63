"""The values that kernels fix the layout of: what a Pallas kernel takes and returns lies in memory row by row."""

from collections import defaultdict
from typing import Any

from .attributes import last_of, walked
from .exchanges import KERNEL, target
from .graph import CUSTOM_CALL, SHARD_MAP
from .partitioned import Partitioned, shape_of
from .passes import CALLS

SUBLANES, LANES = 8, 128
"""Rows of a TPU's tiles and elements in each, to which dims of an array are padded."""
KEEPS = {
    f"stablehlo.{name}"
    for name in ("convert", "dynamic_slice", "dynamic_update_slice", "reshape", "slice", "transpose")
}
"""Operations whose result has the rows of their operand, if both have rows of the same length."""


def kernel_values(program: Partitioned) -> set[Any]:
    """Returns the values whose last dim lies along the lanes of a TPU, as kernels take and return them: also where they
    come from and where they are kept."""
    near, waiting = defaultdict[Any, list[Any]](list), list[Any]()
    for op in walked(program.module):
        for one, other in _same(program, op):
            near[one].append(other)
            near[other].append(one)
        if op.name == CUSTOM_CALL and target(op) == KERNEL:
            waiting.extend((*op.operands, *op.results))
    found = set[Any]()
    while waiting:
        if (value := waiting.pop()) not in found:
            found.add(value)
            waiting += near[value]
    return found


def _same(program: Partitioned, op: Any) -> list[tuple[Any, Any]]:
    """Pairs of values of an operation that have the same rows."""
    if op.name in CALLS:
        block = program.called(op)
    elif op.name == "stablehlo.while":
        block = op.regions[1].blocks[0]
    elif op.name == SHARD_MAP:
        block = op.regions[0].blocks[0]
    elif op.name == "stablehlo.optimization_barrier":
        return list(zip(op.operands, op.results, strict=True))
    else:
        values = op.operands[: 1 + (op.name == "stablehlo.dynamic_update_slice")] if op.name in KEEPS else ()
        return [(value, op.results[0]) for value in values if shape_of(value)[-1:] == shape_of(op.results[0])[-1:]]
    loops = zip(op.operands, op.results, strict=True) if op.name == "stablehlo.while" else ()
    pairs = zip(op.operands, block.arguments, strict=True), zip(last_of(block).operands, op.results, strict=True)
    return [*pairs[0], *pairs[1], *loops]
