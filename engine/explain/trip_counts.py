"""Counts the iterations of loops in a StableHLO program."""

from typing import Any

from jaxlib.mlir import ir


def trip_count(loop: Any) -> int | None:
    """Returns the iterations of a `stablehlo.while`; None if they depend on data."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compared = _owner(_last(condition).operands[0])
    if (
        compared is None
        or compared.name != "stablehlo.compare"
        or "LT" not in str(compared.attributes["comparison_direction"])
    ):
        return None
    counter, limit = compared.operands
    if not isinstance(counter.owner, ir.Block):
        return None
    position = ir.BlockArgument(counter).arg_number
    added = _owner(_last(body).operands[position])
    if added is None or added.name != "stablehlo.add":
        return None
    first, last = _constant(loop.operands[position], loop), _constant(limit, loop)
    steps = [step for value in added.operands if (step := _constant(value, loop)) is not None]
    if first is None or last is None or len(steps) != 1 or steps[0] < 1:
        return None
    return max(0, -((first - last) // steps[0]))


def _last(block: Any) -> Any:
    *_, last = block.operations
    return last.operation


def _owner(value: Any) -> Any:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _constant(value: Any, loop: Any) -> int | None:
    """The value of an integer constant, which a loop may carry unchanged."""
    owner = _owner(value)
    if owner is None:
        position = ir.BlockArgument(value).arg_number
        started = _owner(loop.operands[position]) if position < len(loop.operands) else None
        kept = _last(loop.regions[1].blocks[0]).operands[position] == loop.regions[1].blocks[0].arguments[position]
        owner = started if kept else None
    if owner is None or owner.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    try:
        return int(ir.DenseIntElementsAttr(owner.attributes["value"])[0])
    except ValueError:
        return None
