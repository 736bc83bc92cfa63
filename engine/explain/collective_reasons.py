"""The reasons of a collective in words: the operation that needs it, the layouts that meet there, their origins."""

from collections.abc import Iterator, Sequence

from ..base import formatting
from ..wire.collective import ring_bytes
from .chains import Chains
from .graph import ASKS, RETURN, TYPED, Axis, Graph, Operation, layout, name_of, word
from .transfers import Transfer

MOST_REASONS = 4


def collective_reasons(chains: Chains, transfer: Transfer) -> list[str]:
    """Returns the reasons of a collective, the operation that needs it first."""
    if transfer.written:
        return [_written(chains, transfer)]
    if transfer.why:
        return [f"{transfer.why}{formatting.at(transfer.source)}"]
    sums = transfer.kind in ("all-reduce", "reduce-scatter")
    found = _sum(chains, transfer) if sums else _layouts(chains, transfer)
    return [*list(dict.fromkeys(found))[:MOST_REASONS], *_waste(chains.graph, transfer)]


def _waste(graph: Graph, transfer: Transfer) -> Iterator[str]:
    """An all-reduce of which each device keeps only a part: what reduce-scattering first would send of its bytes."""
    if transfer.kept:
        parts, devices, size = graph.parts(transfer.kept), graph.parts(transfer.axes), transfer.bytes_each
        reduced = ring_bytes("all-reduce", size, devices)
        scattered = ring_bytes("reduce-scatter", size, parts) + ring_bytes(
            "all-reduce", size // parts, devices // parts
        )
        yield (
            f"each device then keeps 1/{parts} of the sum: jax.lax.psum_scatter over {formatting.over(transfer.kept)} "
            f"in a shard_map would send {formatting.percent(scattered / reduced)} of the bytes"
        )


def _written(chains: Chains, transfer: Transfer) -> str:
    """Why a `shard_map` has a collective: its code calls it, or jax's transpose inserts it."""
    operations, at = chains.graph.operations, formatting.at(transfer.source)
    if transfer.producer is None:
        return f"the code calls it{at}"
    op = operations[transfer.producer]
    outer = operations[op.within] if op.within is not None else op
    if "transpose(" not in f"{op.place.op_name} {outer.place.op_name}":
        return f"the code calls it{at}"
    is_outer = op.place.frame == outer.place.frame
    if not is_outer and not op.place.op_name.endswith("psum_invariant"):
        return f"it is the transpose of what the code calls{at}"
    who = "in_specs of the shard_map keep" if is_outer else "the code takes"
    return (
        f"the transpose of the {'shard_map' if is_outer else 'code'}{at} inserts it: {who} an input the same on all "
        f"devices of {formatting.over(transfer.axes)}, so its gradient, {_moved(chains, transfer)}, is summed over them"
    )


def _moved(chains: Chains, transfer: Transfer) -> str:
    return "" if transfer.moved is None else name_of(chains.graph, transfer.moved)


def _sum(chains: Chains, transfer: Transfer) -> Iterator[str]:
    """An operation that sums over a split dim: each device has a partial sum."""
    graph = chains.graph
    if transfer.moved is not None and graph.tensors[transfer.moved].unreduced:
        yield from _unreduced(chains, transfer.moved, transfer.axes)
        return
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
                    f"the {word(op)}{formatting.at(op.place.source)} sums over dim {dim} of operand {position}, "
                    f"{name_of(graph, tensor)}, which is split over {over}"
                )
                origins += _origins(chains, tensor, axes)
    yield from origins


def _unreduced(chains: Chains, moved: int, axes: Sequence[Axis]) -> Iterator[str]:
    """A sum that was left to be taken, and what asks for it."""
    graph, over, tensor = chains.graph, formatting.over(axes), moved
    while (use := next((graph.operations[index] for index, _ in graph.tensors[tensor].uses), None)) and use.results:
        tensor = use.results[0]
        if not graph.tensors[tensor].unreduced:
            asks = f"the {_asking(use)}{formatting.at(use.place.source, use.place.caller)} asks for the whole sum"
            yield f"{name_of(graph, moved)} is left unreduced over {over}, and {asks}"
            break
    if end := chains.unreduced(moved):
        yield f"{name_of(graph, moved)} is unreduced over {over} by the {end.words}"


def _asking(operation: Operation) -> str:
    return "reshard" if operation.place.op_name.endswith("reshard") else word(operation)


def _layouts(chains: Chains, transfer: Transfer) -> Iterator[str]:
    graph, moved = chains.graph, transfer.moved
    if moved is None:
        return
    before = f"{name_of(graph, moved)} comes as {formatting.spec(transfer.before)}"
    axes = [axis for axis in transfer.axes if graph.tensors[moved].dim_of(axis) is not None]
    yield f"{before}, and {_needs(chains, transfer, moved)}"
    if transfer.before == graph.tensors[moved].axes:
        yield from _origins(chains, moved, axes)


def _needs(chains: Chains, transfer: Transfer, moved: int) -> str:
    """The layout that the consumer takes instead, and the reason."""
    graph = chains.graph
    if transfer.consumer is None:
        return f"is taken as {formatting.spec(transfer.after)}"
    op = graph.operations[transfer.consumer]
    taken = op.operands[transfer.position]
    if taken != moved and (asked := graph.tensors[taken]).operation is not None:
        maker = graph.operations[asked.operation]
        if maker.name in (ASKS, TYPED) and (op.name != RETURN or asked.axes == transfer.after):
            where = formatting.at(maker.place.source, maker.place.caller)
            return f"the {_asking(maker)}{where} asks for {layout(asked)}"
    if op.name == RETURN:
        return _returned(chains, transfer, op.results[transfer.position])
    who = f"operand {transfer.position} of the {word(op)}{formatting.at(op.place.source)}"
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


def _returned(chains: Chains, transfer: Transfer, result: int) -> str:
    """The layout of a result of the program, and who asked for that."""
    graph = chains.graph
    name, asked = graph.result_names[graph.results.index(result)], formatting.spec(transfer.after)
    if graph.tensors[result].given or not any(transfer.after):
        return f"{name} is asked for as {asked} by out_shardings"
    why = "; ".join(filter(None, (chains.why(result, axis) for axes in transfer.after for axis in axes)))
    return f"{name} is {asked}{f' ({why})' if why else ''}"


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
