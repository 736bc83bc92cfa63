"""What the compiler has in place of the collectives that Shardy's passes insert: of which it is known how they differ.

Where it is only known that they may differ, the traffic is unknown.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..base import formatting
from .attributes import CONSTANTS, last_of, owner_of
from .explanation import UNKNOWN
from .graph import CUSTOM_CALL, PRODUCTS, Axis
from .lookups import BROADCAST, LOOKUPS, SCATTER
from .partitioned import INSERTED, Partitioned, is_inserted, shape_of, tag

WITHOUT_DATA = re.compile(
    r"(stablehlo|sdy)\.(constant|iota|partition_id|replica_id|return|after_all|create_token|optimization_barrier|"
    r"rng_bit_generator)|func\.return"
)
"""Operations without a rule of Shardy's whose results each device has by itself."""
REDUCTION = "stablehlo.reduce"
GATHERED_BY_SOME = ("stablehlo.fft", "stablehlo.cholesky", "stablehlo.triangular_solve")
"""Operations that XLA's partitioner does not split. The TPU's compiler makes loops of the last two before it."""
COMBINERS = {f"stablehlo.{name}" for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")}
"""Reductions by other functions gather the result of each device."""
SMALL = 2
"""A dim of less than a part per this many devices is gathered by an all-reduce."""


class Exchange(NamedTuple):
    kind: str
    axes: list[Axis]
    bytes: int
    """On one device; 0 if unknown."""
    why: str


def unknown(axes: list[Axis], why: str) -> Exchange:
    return Exchange(UNKNOWN, axes, 0, why)


def gathers(
    program: Partitioned, value: Any, before: Sequence[list[Axis]], after: list[list[Axis]], why: str = ""
) -> Iterator[Exchange]:
    """Yields the collectives that gather a value: one for each dim with other axes, the last dim first, then one
    for all dims of hardly an element for each device."""
    left, shape = list(before), shape_of(value)
    moved = [[axis for axis in axes if axis not in its] for axes, its in zip(before, after, strict=True)]
    small = [SMALL * size <= program.graph.parts(axes) for size, axes in zip(shape, before, strict=True)]
    for dim in reversed(range(len(left))):
        left[dim] = after[dim]
        if moved[dim] and not small[dim]:
            yield Exchange("all-gather", moved[dim], program.bytes(value, left), why)
    if axes := [axis for its, is_small in zip(moved, small, strict=True) if is_small for axis in its]:
        yield Exchange("all-reduce", axes, program.bytes(value, after), why)


def inserted(program: Partitioned, op: Any, found: Exchange) -> Iterator[Exchange]:
    """Yields what the compiler has in place of a collective that Shardy's passes insert."""
    value, (taker, position) = op.operands[0], program.taker(op)
    maker = maker_of(program, value)
    before, after = program.layout(value), program.layout(op.results[0])
    if found.kind == "all-reduce":
        yield from _summed(program, op, maker, found)
    elif taker is not None and is_whole(program, taker):
        if not is_inserted(value) and not is_made(maker):
            yield from gathers(program, value, before, _left(taker, before))
    elif maker is not None and (is_from_whole(program, maker) or _made_whole(program, value, found.axes)):
        return
    elif taker is not None and _looks_up(program, taker, position, found.axes):
        yield unknown(found.axes, f"the {taker.name.rpartition('.')[2]} looks up along a split dim")
    else:
        if why := _other_way(program, op, taker):
            yield unknown(found.axes, why)
        if maker is None or not is_uniform(maker):
            yield from gathers(program, value, before, after) if found.kind == "all-gather" else [found]


def _summed(program: Partitioned, op: Any, maker: Any, found: Exchange) -> Iterator[Exchange]:
    """A sum over a split dim."""
    if maker is not None and not is_sum(maker):
        return  # `exchanges` has what the compiler does instead
    for axes in _by_dim(program, maker, found.axes):
        yield Exchange(found.kind, axes, found.bytes, found.why)
    sides = _contracted(program, maker, found.axes) if maker is not None else []
    if alone := [axis for axis in found.axes if sum(axis in axes for axes in sides) == 1 < len(sides)]:
        over = " × ".join(alone)
        why = f"of a product, one operand is whole where {over} splits the other: the compiler may gather that"
        yield unknown(alone, why)
    is_cut = any(use.owner.operation.name == "sdy.all_slice" for use in op.results[0].uses)
    if sides and is_cut and _unused(program, maker):
        why = "a sum of which each device takes a part: the compiler may sum a part alone"
        yield unknown(found.axes, why)


def _by_dim(program: Partitioned, maker: Any, axes: list[Axis]) -> list[list[Axis]]:
    """The axes of each dim that a reduction sums: the compiler sums over one dim after the other."""
    if maker is None or maker.name != REDUCTION:
        return [axes]
    layout = program.layout(maker.operands[0])
    dims = [[axis for axis in its if axis in axes] for its in layout if set(its) & set(axes)]
    return dims if {axis for its in dims for axis in its} == set(axes) else [axes]


def _contracted(program: Partitioned, op: Any, axes: Sequence[Axis]) -> list[list[Axis]]:
    """Of each operand of a product, those of the axes that split a dim it sums over, before the passes move it."""
    rule = program.rule(op)
    if rule is None or op.name not in PRODUCTS:
        return []
    found: list[list[Axis]] = []
    for value, factors in zip(op.operands, rule.operands, strict=True):
        dims = zip(program.layout(program.source(value)), factors, strict=True)
        found.append([axis for its, dim in dims if set(dim) & rule.summed for axis in its if axis in axes])
    return found


def _other_way(program: Partitioned, op: Any, taker: Any) -> str:
    """Why the compiler may move a value otherwise than the passes do; empty if it moves it alike."""
    steps = [op]
    while (uses := list(steps[-1].results[0].uses)) and len(uses) == 1 and uses[0].owner.operation.name in INSERTED:
        steps.append(uses[0].owner.operation)
    kinds = [kind for each in steps if (kind := INSERTED[each.name][0])]
    layouts = [program.layout(program.source(op.operands[0])), program.layout(steps[-1].results[0])]
    is_cut, is_gather = program.layout(op.operands[0]) != layouts[0], kinds == ["all-gather"]
    maker = maker_of(program, op.operands[0])
    sorts = [each for each in (maker, taker) if each is not None and each.name == "stablehlo.sort"]
    to = taker.name.rpartition(".")[2] if taker is not None else ""
    differs = (
        (len(kinds) > 1 and set(kinds) != {"all-gather"})
        or (kinds == ["collective-permute"] and (is_cut or _idle(program, layouts)))
        or any(is_gather or len(each.operands) > 1 for each in sorts)
        or to == "reshape"
        or (to == "while" and not is_gather)
        or (getattr(taker, "name", "") in PRODUCTS and (not is_gather or _has_choice(program, taker, layouts)))
    )
    change = f"from {formatting.spec(layouts[0])} to {formatting.spec(layouts[1])}"
    return (
        f"{change}{f' for a {to}' if to else ''}: the compiler may move this or another value otherwise"
        if differs
        else ""
    )


def _has_choice(program: Partitioned, product: Any, moved: Sequence[Sequence[list[Axis]]]) -> bool:
    """Whether the compiler can compute a product otherwise than with a gathered operand."""
    graph = program.graph
    gathered = [axis for axis in axes_of_layouts(moved[:1]) if axis not in axes_of_layouts(moved[1:])]
    return graph.parts(_unused(program, product)) >= graph.parts(gathered)


def _unused(program: Partitioned, product: Any) -> list[Axis]:
    """The axes that split no value of a product, as the passes find it."""
    values = (*map(program.source, product.operands), *product.results)
    return _idle(program, list(map(program.layout, values)))


def _idle(program: Partitioned, layouts: Sequence[Sequence[list[Axis]]]) -> list[Axis]:
    used = {axis.partition(":")[0] for axis in axes_of_layouts(layouts)}
    return [axis for axis in program.graph.mesh if axis not in used]


def axes_of_layouts(layouts: Iterable[Sequence[list[Axis]]]) -> list[Axis]:
    return list(dict.fromkeys(axis for layout in layouts for axes in layout for axis in axes))


def is_cut(program: Partitioned, op: Any) -> bool:
    """Whether every device has the whole of the only operand that is split."""
    if not op.operands or any(any(program.layout(value)) for value in list(op.operands)[1:]):
        return False
    value = op.operands[0]
    is_whole_before = program.is_moved(value) and not any(program.layout(program.source(value)))
    return is_whole_before or _made_whole(program, value, axes_of_layouts([program.layout(value)]))


def _made_whole(program: Partitioned, value: Any, axes: list[Axis]) -> bool:
    """Whether every device has the result of a custom call along the dims that these axes split."""
    value = program.source(value)
    maker = maker_of(program, value)
    if maker is None or maker.name != CUSTOM_CALL or (rule := program.rule(maker)) is None:
        return False
    given = {factor for operand in rule.operands for factors in operand for factor in factors} - rule.replicated
    dims = zip(program.layout(value), rule.results[list(maker.results).index(value)], strict=True)
    return all(not set(factors) & given for its, factors in dims if set(its) & set(axes))


def _looks_up(program: Partitioned, taker: Any, position: int, axes: list[Axis]) -> bool:
    """Whether a gather or scatter takes an operand along these axes by indices."""
    rule = program.rule(taker)
    if rule is None or taker.name not in LOOKUPS or position >= len(rule.operands):
        return False
    dims = zip(program.layout(program.source(taker.operands[position])), rule.operands[position], strict=True)
    by = axes_of_layouts([program.layout(taker.operands[1])])
    if by and set(by) < set(axes):
        return True
    return any(set(its) & set(axes) and set(factors) & (rule.summed | rule.replicated) for its, factors in dims)


def maker_of(program: Partitioned, value: Any) -> Any:
    """The operation that computes a value before it is moved; None for an argument."""
    return owner_of(program.source(value))


def is_made(maker: Any) -> bool:
    """Whether every device can make the whole value by itself."""
    return maker is not None and (is_uniform(maker) or bool(WITHOUT_DATA.fullmatch(maker.name)))


def is_uniform(op: Any) -> bool:
    """Whether all elements of a result are the same."""
    return op.name in CONSTANTS or (op.name == BROADCAST and not shape_of(op.operands[0]))


def _left(taker: Any, layout: Sequence[list[Axis]]) -> list[list[Axis]]:
    """The axes of each dim that are left when the compiler has gathered an operand."""
    if taker.name != "stablehlo.dynamic_slice":
        return [[] for _ in layout]
    sizes = zip(layout, shape_of(taker.operands[0]), shape_of(taker.results[0]), strict=True)
    return [axes if size == taken else [] for axes, size, taken in sizes]


def is_sum(maker: Any) -> bool:
    """Whether devices can combine their results of an operation by an all-reduce."""
    if maker.name not in (REDUCTION, SCATTER):
        return True
    body = list(maker.regions[0].blocks[0].operations)
    return len(body) == 2 and body[0].operation.name in COMBINERS


def is_whole(program: Partitioned, op: Any) -> bool:
    """Whether XLA's partitioner gathers the operands of an operation: along every dim, or for a slice at an index."""
    if op.name != "stablehlo.dynamic_slice":
        return is_unsplit(program, op)
    layout = program.layout(program.source(op.operands[0]))
    return _left(op, layout) != layout


def is_unsplit(program: Partitioned, op: Any) -> bool:
    """Whether XLA's partitioner does not split an operation along any dim."""
    match op.name:
        case "stablehlo.sort":
            index = tag(op)
            return index is not None and program.graph.operations[index].place.op_name.endswith("top_k")
        case "stablehlo.convolution":  # of groups of several channels each
            dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            channels = shape_of(op.operands[1])[dims.kernel_input_feature_dimension]
            return channels > 1 < ir.IntegerAttr(op.attributes["feature_group_count"]).value
        case name:
            return name in GATHERED_BY_SOME


def settle_results(program: Partitioned) -> None:
    """Leaves dims of results whole that the compiler gathers, unless the program asks for a layout."""
    for value, index in zip(last_of(program.main).operands, program.graph.results, strict=True):
        tensor, maker = program.graph.tensors[index], _before_slices(program, maker_of(program, value))
        if maker is not None and not tensor.given and is_whole(program, maker):
            moved = maker.operands[0]
            sides = zip(tensor.axes, program.layout(program.source(moved)), program.layout(moved), strict=False)
            tensor.axes[:] = [  # in place: it is the layout of values that are already known
                [axis for axis in its if axis not in before or axis in after] for its, before, after in sides
            ]


def is_from_whole(program: Partitioned, maker: Any) -> bool:
    """Whether every device has what an operation computes: from whole operands, or a slice of that."""
    maker = _before_slices(program, maker)
    return maker is not None and is_whole(program, maker)


def _before_slices(program: Partitioned, maker: Any) -> Any:
    while maker is not None and maker.name == "stablehlo.slice":
        maker = maker_of(program, maker.operands[0])
    return maker
