"""Keeps ragged products as one operation each, as the TPU compiler computes them.

Shardy's passes begin by writing CHLO's operations in StableHLO, which for a ragged product are products with the
kernels of all groups. In a `shard_map` no axis has to cross them, so there they can stay opaque.
"""

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from .passes import MANUAL

NAME = "chlo.ragged_dot"


def keep_ragged_products(module: Any) -> None:
    """Replaces those in a `shard_map` by calls of a kernel, in place."""
    for operation in list(_in_shard_map(module, False)):
        result = operation.results[0]
        with operation.location, ir.InsertionPoint(operation):
            name: dict[str, ir.Attribute] = {"call_target_name": ir.StringAttr.get(NAME)}
            new = ir.Operation.create("stablehlo.custom_call", [result.type], list(operation.operands), name)
        result.replace_all_uses_with(new.results[0])
        operation.erase()


def _in_shard_map(operation: Any, is_inside: bool) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                if is_inside and inner.operation.name == NAME:
                    yield inner.operation
                elif inner.operation.regions:
                    yield from _in_shard_map(inner.operation, is_inside or inner.operation.name == MANUAL)
