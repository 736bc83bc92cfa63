"""Conflicts: a mesh axis that splits another value of the same operation, but not this dim."""

from collections.abc import Iterator
from typing import NamedTuple

from .graph import Axis, Graph, Operation, Seat, Tensor, layout, name_of, word

MOST_PER_DIM = 2
"""Conflicts that are named for one dim of a tensor."""
MOST_USES = 8


class Conflict(NamedTuple):
    """A dim that an axis could have split."""

    dim: int
    axis: Axis
    operation: int
    """The operation where the two sides meet."""
    other: int
    what: str
    """Both sides, and the reason that the axis was not taken over."""


def conflicts(graph: Graph, index: int) -> list[Conflict]:
    """Returns the conflicts of a tensor's dims, those at its own operation first."""
    tensor = graph.tensors[index]
    places = [*([tensor.operation] if tensor.operation is not None else []), *(use for use, _ in tensor.uses)]
    found: dict[tuple[int, Axis], Conflict] = {}
    for operation in dict.fromkeys(places[: MOST_USES + 1]):
        for conflict in _at(graph, operation, index):
            if sum(dim == conflict.dim for dim, _ in found) < MOST_PER_DIM:
                found.setdefault((conflict.dim, conflict.axis), conflict)
    return list(found.values())


def _at(graph: Graph, operation: int, index: int) -> Iterator[Conflict]:
    op = graph.operations[operation]
    seats = op.seats
    own = next((seat for seat in seats if seat.tensor == index), None)
    if own is None:
        return
    for dim, factors in enumerate(own.factors):
        for other in seats:
            for axis in _axes_of(graph.tensors[other.tensor], other, factors):
                if other.tensor != index and axis not in graph.tensors[index].axes[dim]:
                    why = _why(graph, op, graph.tensors[index], dim, axis, seats)
                    what = (
                        f"{other.role} of the {word(op)}, {name_of(graph, other.tensor)}, is split over {axis}: {why}"
                    )
                    yield Conflict(dim, axis, operation, other.tensor, what)


def _axes_of(tensor: Tensor, seat: Seat, factors: list[int]) -> Iterator[Axis]:
    """The axes that split a dim with one of these factors."""
    for dim, its in enumerate(seat.factors):
        if set(its) & set(factors):
            yield from tensor.axes[dim]


def _why(graph: Graph, op: Operation, own: Tensor, dim: int, axis: Axis, seats: list[Seat]) -> str:
    taken = own.dim_of(axis)
    if taken is not None:
        return f"{axis} already splits dim {taken} here"
    parts = graph.parts([*own.axes[dim], axis])
    if own.shape[dim] % parts:
        return f"{own.shape[dim]} does not divide by {parts}"
    seat = next(seat for seat in seats if graph.tensors[seat.tensor] is own)
    if op.rule and set(seat.factors[dim]) & op.rule.whole:
        return f"the {word(op)} needs this dim whole"
    rivals = {
        rival
        for other in seats
        for rival in _axes_of(graph.tensors[other.tensor], other, seat.factors[dim])
        if rival != axis
    }
    if rivals:
        return f"another of its values splits this dim over {', '.join(sorted(rivals))}"
    if op.name == "sdy.sharding_constraint":
        return f"the constraint asks for {layout(graph.tensors[op.results[0]])}"
    return "its own layout was asked for"
