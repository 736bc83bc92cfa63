"""Counts the iterations of loops in a StableHLO program."""

from typing import Any

from jaxlib.mlir import ir

from .attributes import CONSTANTS, last_of, owner_of


def trip_count(loop: Any) -> int | None:
    """Returns the iterations of a `stablehlo.while`; None if they depend on data."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compared = owner_of(last_of(condition).operands[0])
    if (
        compared is None
        or compared.name != "stablehlo.compare"
        or "LT" not in str(compared.attributes["comparison_direction"])
    ):
        return None
    counter, limit = compared.operands
    if owner_of(counter) is not None:
        return None
    position = ir.BlockArgument(counter).arg_number
    added = owner_of(last_of(body).operands[position])
    if added is None or added.name != "stablehlo.add" or body.arguments[position] not in list(added.operands):
        return None
    first, last = _constant(loop.operands[position], loop), _constant(limit, loop)
    steps = [step for value in added.operands if (step := _constant(value, loop)) is not None]
    if first is None or last is None or len(steps) != 1 or steps[0] < 1:
        return None
    return max(0, -((first - last) // steps[0]))


def _constant(value: Any, loop: Any) -> int | None:
    """The value of an integer constant, which a loop may carry unchanged."""
    owner = owner_of(value)
    if owner is None:
        position = ir.BlockArgument(value).arg_number
        started = owner_of(loop.operands[position]) if position < len(loop.operands) else None
        body = loop.regions[1].blocks[0]
        kept = last_of(body).operands[position] == body.arguments[position]
        owner = started if kept else None
    if owner is None or owner.name not in CONSTANTS:
        return None
    try:
        return int(ir.DenseIntElementsAttr(owner.attributes["value"])[0])
    except ValueError:
        return None
