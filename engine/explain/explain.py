"""Explains the values and collectives of a lowered program, and its conflicts.

A conflict: a mesh axis splits another value of the same operation, but not this dim.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..base import formatting
from ..spec.topology import Topology
from .chains import Chains, Reasons
from .collective_reasons import collective_reasons
from .explanation import UNKNOWN, CollectiveOrigin, Explanation, Link, ValueOrigin, ValueRole
from .graph import ASKS, RETURN, TRIVIAL, Axis, Graph, Operation, Seat, bytes_of, layout, name_of, word
from .memories import memory_transfers, moves_to_host, spread
from .partitioned import partition
from .reductions import reductions_on
from .reshards import settle_results
from .transfers import Transfer, read_transfers

MOST_VALUES = 2000
"""Values that are explained: a program may have thousands of lines."""
MOST_PER_DIM = 2
MOST_USES = 8


class Conflict(NamedTuple):
    """A dim that an axis could have split."""

    dim: int
    axis: Axis
    operation: int
    other: int
    what: str


def explain(
    module: Any,
    program: str,
    names: Sequence[str] = (),
    reasons: Reasons | None = None,
    with_results: bool = True,
    topology: Topology | None = None,
) -> Explanation:
    """Explains a module of StableHLO, which stays as it is. `names`: of its arguments; jax's by default. Without
    results, unnamed ones are left out. `topology`: what its collectives are estimated for; by default the CPU. Raises
    UserError if Shardy's passes are missing or fail, or the mesh does not fill the topology."""
    with module.context:
        partitioned = partition(module, records=True)
        settle_results(partitioned)
        graph = partitioned.graph
        reductions = reductions_on(topology, partitioned, graph.mesh) if topology else None
        transfers = list(read_transfers(partitioned, reductions))
        spread(graph)
        memory = memory_transfers(partitioned)
    given = (graph.tensors[index] for index in graph.arguments)
    for tensor, name in zip((tensor for tensor in given if not tensor.is_token), names, strict=False):
        tensor.names = [name]
    chosen = _chosen(graph, with_results)
    chains = Chains(graph, reasons or {}, _labels(chosen))
    return Explanation(
        program=program,
        mesh=graph.mesh,
        values=[_value(chains, transfers, index, name) for index, name in chosen],
        collectives=_collectives(chains, transfers),
        memory_transfers=memory,
    )


def _chosen(graph: Graph, with_results: bool) -> list[tuple[int, str]]:
    """The values to explain, with a name: arguments, named values, the last value of each line, results."""
    given = (*graph.arguments, *graph.captured)
    chosen = {index: graph.tensors[index].names[0] for index in given if not graph.tensors[index].is_token}
    last: dict[tuple[str, bool], Operation] = {}
    inner: dict[int, str] = {}
    for operation in graph.operations:
        inner |= {index: graph.tensors[index].names[0] for index in operation.results if graph.tensors[index].names}
        if moves_to_host(graph, operation):
            inner[operation.results[0]] = name_of(graph, operation.operands[0])
        place, has_shape = operation.place, any(graph.tensors[index].shape for index in operation.results)
        if place.source and has_shape and operation.name not in TRIVIAL and not operation.name.endswith("constant"):
            last[place.source, "transpose(" in place.op_name] = operation
    for op in last.values():
        name = formatting.op(op.place.op_name).rstrip(":") or word(op)
        inner = {index: name for index in op.results if graph.tensors[index].shape} | inner
    chosen |= {index: inner[index] for index in sorted(inner) if index not in chosen}
    every = zip(graph.results, graph.result_names, strict=True) if with_results else ()
    results = [(index, name) for index, name in every if not graph.tensors[index].is_token]
    most = max(len(graph.arguments) + len(graph.captured), MOST_VALUES - len(results))
    return [*list(chosen.items())[:most], *results]


def _labels(chosen: Sequence[tuple[int, str]]) -> dict[int, str]:
    labels: dict[int, str] = {}
    counts: dict[str, int] = {}
    for index, name in chosen:
        counts[name] = number = counts.get(name, 0) + 1
        labels.setdefault(index, f"{name} #{number}" if number > 1 else name)
    return labels


def _value(chains: Chains, transfers: Sequence[Transfer], index: int, name: str) -> ValueOrigin:
    graph = chains.graph
    tensor = graph.tensors[index]
    if index in graph.captured:
        return _captured(graph, index, name)
    links = [link for axes in tensor.axes for axis in axes for link in chains.links(index, axis)]
    links += [*chains.unsharded(index), *_unreduced(chains, index), *_conflicts(chains, transfers, index)]
    return ValueOrigin(
        name=name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        axes=tensor.axes,
        unreduced=tensor.unreduced,
        device=tensor.device,
        memory=tensor.memory,
        role=_role(graph, index),
        source=graph.operations[tensor.operation].place.source if tensor.operation is not None else "",
        origin=links,
    )


def _captured(graph: Graph, index: int, name: str) -> ValueOrigin:
    """A captured array: whatever layout the partitioner would have for it, the compiled program has it whole."""
    tensor = graph.tensors[index]
    source = next((graph.operations[use].place.source for use, _ in tensor.uses), "")
    size = formatting.size(math.prod(tensor.shape) * bytes_of(tensor.dtype))
    what = f"captured by the function, which does not take it: a constant of {size}, whole on every device"
    link = Link(dim=None, axis="", kind="captured", what=what, source=source)
    whole: list[list[str]] = [[] for _ in tensor.shape]
    return ValueOrigin(
        name=name, shape=tensor.shape, dtype=tensor.dtype, axes=whole, role="captured", source=source, origin=[link]
    )


def _role(graph: Graph, index: int) -> ValueRole:
    if index in graph.arguments:
        return "argument"
    return "result" if index in graph.results else "value"


def _unreduced(chains: Chains, index: int) -> Iterator[Link]:
    for axis in chains.graph.tensors[index].unreduced:
        if end := chains.unreduced(index):
            yield end.link(None, axis)


def _conflicts(chains: Chains, transfers: Sequence[Transfer], index: int) -> Iterator[Link]:
    graph = chains.graph
    for conflict in conflicts(graph, index):
        sides = (index, conflict.other)
        there = [each for each in transfers if each.consumer == conflict.operation and each.kind != UNKNOWN]
        moved = [each for each in there if each.moved in sides]
        became = "".join(f"; {_in_words(graph, each)}" for each in moved[:1])
        yield Link(
            dim=conflict.dim,
            axis=conflict.axis,
            kind="conflict",
            what=conflict.what + became,
            source=graph.operations[conflict.operation].place.source,
            value=chains.labels.get(conflict.other, ""),
        )


def _in_words(graph: Graph, each: Transfer) -> str:
    assert each.moved is not None
    over, size = formatting.over(each.axes), formatting.size(each.bytes_each)
    return f"there {name_of(graph, each.moved)} goes through an {each.kind} over {over}, {size}"


def _collectives(chains: Chains, transfers: Sequence[Transfer]) -> list[CollectiveOrigin]:
    """What is unknown, then the collectives, equal ones joined, by falling bytes."""
    groups: dict[tuple[str, tuple[str, ...], str, tuple[str, ...]], list[Transfer]] = {}
    for each in transfers:
        if each.axes or each.kind == UNKNOWN:
            why = collective_reasons(chains, each)
            source = each.source or _source(chains.graph, each)
            groups.setdefault((each.kind, tuple(each.axes), source, tuple(why)), []).append(each)
    found = [_collective(*key, members) for key, members in groups.items()]
    return sorted(found, key=lambda each: (each.kind != UNKNOWN, -(each.bytes or 0), each.kind, each.axes, each.source))


def _collective(
    kind: str, axes: tuple[str, ...], source: str, why: tuple[str, ...], members: Sequence[Transfer]
) -> CollectiveOrigin:
    counts = [each.count for each in members]
    known = None not in counts
    total = sum(each.bytes_each * (1 if each.count is None else each.count) for each in members)
    return CollectiveOrigin(
        kind=kind,
        axes=list(axes),
        count=sum(filter(None, counts)) if known else None,
        bytes=None if kind == UNKNOWN else total,
        source=source,
        because=list(why),
    )


def _source(graph: Graph, transfer: Transfer) -> str:
    sums = transfer.kind in ("all-reduce", "reduce-scatter")
    places = (transfer.producer, transfer.consumer) if sums else (transfer.consumer, transfer.producer)
    return next((graph.operations[each].place.source for each in places if each is not None), "")


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
    own = next((seat for seat in op.seats if seat.tensor == index), None)
    if own is None:
        return
    for dim, factors in enumerate(own.factors):
        for other in op.seats:
            for axis in _axes_of(graph, other, factors):
                if other.tensor != index and axis not in graph.tensors[index].axes[dim]:
                    why = _why(graph, op, own, dim, axis)
                    what = (
                        f"{other.role} of the {word(op)}, {name_of(graph, other.tensor)}, is split over {axis}: {why}"
                    )
                    yield Conflict(dim, axis, operation, other.tensor, what)


def _axes_of(graph: Graph, seat: Seat, factors: list[int]) -> Iterator[Axis]:
    for axes, its in zip(graph.tensors[seat.tensor].axes, seat.factors, strict=True):
        if set(its) & set(factors):
            yield from axes


def _why(graph: Graph, op: Operation, own: Seat, dim: int, axis: Axis) -> str:
    tensor = graph.tensors[own.tensor]
    taken = tensor.dim_of(axis)
    if taken is not None:
        return f"{axis} already splits dim {taken} here"
    parts = graph.parts([*tensor.axes[dim], axis])
    if tensor.shape[dim] % parts:
        return f"{tensor.shape[dim]} does not divide by {parts}"
    if op.rule and set(own.factors[dim]) & op.rule.whole:
        return f"the {word(op)} needs this dim whole"
    rivals = {rival for other in op.seats for rival in _axes_of(graph, other, own.factors[dim]) if rival != axis}
    if rivals:
        return f"another of its values splits this dim over {', '.join(sorted(rivals))}"
    if op.name == ASKS:
        return f"the constraint asks for {layout(graph.tensors[op.results[0]])}"
    if op.name == RETURN:
        return "the result is asked for otherwise by out_shardings"
    return "its own layout was asked for"
