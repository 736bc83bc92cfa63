"""The largest elements along a split dim, as `jax.lax.top_k` finds them: each device chooses among its own, and
compilers for TPU and GPU gather what it has chosen. Shardy sees the sort as which it is written."""

import math
from collections.abc import Iterator
from typing import Any

from .partitioned import Partitioned, is_inserted
from .reshards import Exchange, maker_of
from .windows import number, numbers

SORT, SLICE = "stablehlo.sort", "stablehlo.slice"


def chosen_first(program: Partitioned, op: Any) -> list[Exchange] | None:
    """Returns what compilers exchange in place of a collective that the passes insert right before or after a top-k;
    None for other collectives."""
    maker = maker_of(program, op.operands[0])
    if maker is not None and maker.name == SLICE:
        maker = maker_of(program, maker.operands[0])
    if maker is not None and _count(program, maker):
        return []
    taker, position = program.taker(op)
    if taker is None or not (count := _count(program, taker)):
        return None
    value, dim = program.source(op.operands[0]), number(taker, "dimension")
    layout = program.layout(value)
    if not layout[dim]:
        return None
    if not any(list(_takers(cut.results[0])) for cut in _takers(taker.results[position])):
        return []
    rows = math.prod(size for at, size in enumerate(program.part(value, layout)) if at != dim)
    size = rows * count * program.graph.parts(layout[dim]) * program.itemsize(value)
    return [Exchange("all-gather", layout[dim], size, "")]


def _count(program: Partitioned, op: Any) -> int:
    """How many of the largest elements are taken of a sort of values with their positions; 0 of any other operation."""
    if op.name != SORT or len(op.operands) != 2 or "GT" not in str(op.regions[0].blocks[0].operations[0]):
        return 0
    positions, dim = maker_of(program, op.operands[1]), number(op, "dimension")
    if positions is None or positions.name != "stablehlo.iota" or number(positions, "iota_dimension") != dim:
        return 0
    cuts = [cut for result in op.results for cut in _takers(result)]
    if not all(cut.name == SLICE and not numbers(cut, "start_indices", [])[dim] for cut in cuts):
        return 0
    return max((numbers(cut, "limit_indices", [])[dim] for cut in cuts), default=0)


def _takers(value: Any) -> Iterator[Any]:
    """The operations that take a value, also after collectives that the passes insert."""
    for op in (use.owner.operation for use in value.uses):
        if op.results and is_inserted(op.results[0]):
            yield from _takers(op.results[0])
        else:
            yield op
