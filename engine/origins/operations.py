"""The operations of a module of MLIR, at any depth."""

from typing import Any

from jaxlib.mlir import ir


def operations(operation: Any, name: str) -> list[Any]:
    """Returns the operations with a name in the regions of an operation, and in theirs, in their order."""
    found: list[Any] = []

    def visit(inner: Any) -> ir.WalkResult:
        if inner.name == name:
            found.append(inner)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found
