"""Keeps ragged products as one operation each, as the TPU compiler computes them.

Shardy's passes begin by writing CHLO's operations in StableHLO, which for a ragged product are products with the
kernels of all groups. In a `shard_map` no axis has to cross them, so there they can stay opaque.
"""

from typing import Any

from jaxlib.mlir import ir

from .operations import operations
from .passes import MANUAL

NAME = "chlo.ragged_dot"


def keep_ragged_products(module: Any) -> None:
    """Replaces those in a `shard_map` by calls of a kernel, in place."""
    for shard_map in operations(module, MANUAL):
        for operation in operations(shard_map, NAME):
            _replace(operation)


def _replace(operation: Any) -> None:
    result = operation.results[0]
    with operation.location, ir.InsertionPoint(operation):
        name: dict[str, ir.Attribute] = {"call_target_name": ir.StringAttr.get(NAME)}
        new = ir.Operation.create("stablehlo.custom_call", [result.type], list(operation.operands), name)
    result.replace_all_uses_with(new.results[0])
    operation.erase()
