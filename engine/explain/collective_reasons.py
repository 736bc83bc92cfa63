"""The reasons of a collective in words: the operation that needs it, the layouts that meet there, their origins."""

from collections.abc import Iterator

from ..base import formatting
from .chains import Chains
from .graph import Axis, at, layout, name_of, word
from .transfers import Transfer

MOST_REASONS = 4


def collective_reasons(chains: Chains, transfer: Transfer) -> list[str]:
    """Returns the reasons of a collective, the operation that needs it first."""
    if transfer.written:
        return [f"the code calls it{at(transfer.source)}"]
    sums = transfer.kind in ("all-reduce", "reduce-scatter")
    found = _sum(chains, transfer) if sums else _layouts(chains, transfer)
    return list(dict.fromkeys(found))[:MOST_REASONS]


def _sum(chains: Chains, transfer: Transfer) -> Iterator[str]:
    """An operation that sums over a split dim: each device has a partial sum."""
    graph = chains.graph
    if transfer.producer is None or (rule := graph.operations[transfer.producer].rule) is None:
        return
    op = graph.operations[transfer.producer]
    origins: list[str] = []
    for position, tensor in enumerate(op.operands[: len(rule.operands)]):
        for dim, factors in enumerate(rule.operands[position]):
            axes = [axis for axis in graph.tensors[tensor].axes[dim] if axis in transfer.axes]
            if axes and set(factors) & rule.summed:
                over = " × ".join(axes)
                yield (
                    f"the {word(op)}{at(op.place.source)} sums over dim {dim} of operand {position}, "
                    f"{name_of(graph, tensor)}, which is split over {over}"
                )
                origins += _origins(chains, tensor, axes)
    yield from origins


def _layouts(chains: Chains, transfer: Transfer) -> Iterator[str]:
    graph, moved = chains.graph, transfer.moved
    if moved is None:
        return
    before = f"{name_of(graph, moved)} comes as {formatting.spec(transfer.before)}"
    axes = [axis for axis in transfer.axes if graph.tensors[moved].dim_of(axis) is not None]
    if transfer.consumer is None:
        yield f"{before}, and a result of the program is asked for as {formatting.spec(transfer.after)}"
    else:
        yield f"{before}, and {_needs(chains, transfer, moved)}"
    if transfer.before == graph.tensors[moved].axes:
        yield from _origins(chains, moved, axes)


def _needs(chains: Chains, transfer: Transfer, moved: int) -> str:
    """The layout that the consumer takes instead, and the reason."""
    graph = chains.graph
    assert transfer.consumer is not None
    op = graph.operations[transfer.consumer]
    taken = op.operands[transfer.position]
    if taken != moved and (asked := graph.tensors[taken]).operation is not None:
        maker = graph.operations[asked.operation]
        if maker.name == "sdy.sharding_constraint":
            return f"the constraint{at(maker.place.source)} asks for {layout(asked)}"
    who = f"operand {transfer.position} of the {word(op)}{at(op.place.source)}"
    rule = op.rule
    if rule is None or transfer.position >= len(rule.operands):
        return f"{who} takes it as {formatting.spec(transfer.after)}"
    tensor = graph.tensors[taken]
    for axis in transfer.axes:
        dim = tensor.dim_of(axis)
        if dim is None:
            continue
        if set(rule.operands[transfer.position][dim]) & rule.whole:
            return f"{who} is needed whole along dim {dim}"
        if other := _rival(chains, transfer.consumer, axis, set(rule.operands[transfer.position][dim])):
            return f"{who} cannot keep {axis} on dim {dim}: {other}"
    return f"{who} takes it as {formatting.spec(transfer.after)}"


def _rival(chains: Chains, operation: int, axis: Axis, factors: set[int]) -> str:
    """Another value of the operation that needs the axis for another dim, or this dim unsplit."""
    graph, op = chains.graph, chains.graph.operations[operation]
    for role, tensor, dims in op.seats:
        dim = graph.tensors[tensor].dim_of(axis)
        if dim is not None and not factors & set(dims[dim]):
            why = chains.why(tensor, axis)
            return f"{axis} splits dim {dim} of {role}" + (f" ({why})" if why else "")
    for role, tensor, dims in op.seats:
        if any(factors & set(its) and axis not in graph.tensors[tensor].axes[dim] for dim, its in enumerate(dims)):
            return f"{role} is {layout(graph.tensors[tensor])}"
    return ""


def _origins(chains: Chains, tensor: int, axes: list[Axis]) -> list[str]:
    found = ((axis, chains.why(tensor, axis)) for axis in axes)
    return [f"{name_of(chains.graph, tensor)} has {axis} from {why}" for axis, why in found if why]
