"""What an operation of a partitioned program exchanges between devices besides the collectives of Shardy's passes.

`exchanges` decides it for every operation. Shardy's rule of an operation divides its dims into factors. Along one that
passes through, each device computes its part from its own parts, and for one that is summed the passes insert a
collective. Two kinds of factors are left to XLA's partitioner: those along which an operation moves elements (slices,
windows, reversals) and those that it needs whole. Traffic is estimated where the partitioned form is known, and unknown
for all other operations.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..base import formatting
from .explanation import UNKNOWN
from .graph import Axis, Rule, word
from .partitioned import INSERTED, Partitioned, tag

CUSTOM_CALL = "stablehlo.custom_call"
RAGGED_EXCHANGE = "ragged_all_to_all"
PARTITIONED_BY_CODE = "CustomSPMDPartitioning"
TARGET = "call_target_name"
WITHOUT_DATA = re.compile(
    r"(stablehlo|sdy)\.(constant|iota|partition_id|replica_id|return|after_all|create_token|optimization_barrier|"
    r"rng_bit_generator)|func\.return"
)
"""Operations without a rule of Shardy's whose results each device has by itself."""
LOCAL_CALLS = re.compile(
    r"(lapack_|cusolver|cublas|cudnn|hipsolver|hipblas|rocsolver|__gpu\$xla\.gpu\.triton|__triton|triton_kernel_call|"
    r"cu_threefry|hip_threefry|Sharding$|annotate_device_placement$|LayoutConstraint$|Qr$|ProductOfElementaryHouse|Eigh$|"
    r"LuDecomposition$|ApproxTopK|mhlo\.|chlo\.|CustomSPMDPartitioning$|xla\.sdy)"
)
"""Custom calls that compute on one device."""
CALLBACK = re.compile(r"callback")
COMMUNICATES = '"has_communication":true'
UNSPLIT = ("stablehlo.fft", "stablehlo.cholesky", "stablehlo.triangular_solve")
"""Operations that XLA's partitioner does not split: it gathers their operands."""
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


class Window(NamedTuple):
    """Along one dim, element `i` of the result takes `size` elements of the operand from `i * stride - low` on, `step`
    apart, with `spread - 1` zeros between the operand's elements."""

    low: int
    stride: int = 1
    size: int = 1
    step: int = 1
    spread: int = 1

    def taken(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the operand's elements that results `begin` to `end` take, also those beyond its ends."""
        first, last = begin * self.stride - self.low, (end - 1) * self.stride - self.low + (self.size - 1) * self.step
        return -(-first // self.spread), last // self.spread + 1


def exchanges(program: Partitioned, op: Any) -> list[Exchange]:
    """Returns what an operation exchanges, in the order of the dims; empty if it is known to need nothing."""
    return list(_Exchanges(program, op).found())


def gathers(
    program: Partitioned, value: Any, before: Sequence[list[Axis]], after: Sequence[list[Axis]], why: str = ""
) -> Iterator[Exchange]:
    """Yields the collectives that gather a value: one for each dim with other axes, the last dim first."""
    left, shape = list(before), _shape(value)
    for dim in reversed(range(len(left))):
        if axes := [axis for axis in before[dim] if axis not in after[dim]]:
            left[dim] = after[dim]
            kind = "all-reduce" if SMALL * shape[dim] <= program.graph.parts(before[dim]) else "all-gather"
            yield Exchange(kind, axes, program.bytes(value, left), why)


def inserted(program: Partitioned, op: Any, found: Exchange) -> Iterator[Exchange]:
    """Yields what the compiler has in place of a collective that Shardy's passes insert."""
    value, (taker, position) = op.operands[0], _taker(op)
    maker = _maker(value)
    before, after = program.layout(value), program.layout(op.results[0])
    if found.kind == "all-reduce":
        yield from _summed(program, op, maker, found)
    elif taker is not None and is_whole(program, taker):
        if not _is_inserted(value) and not _is_made(maker):
            yield from gathers(program, value, before, _whole(before))
    elif maker is not None and (_is_from_whole(program, maker) or _made_whole(program, value, found.axes)):
        return
    elif taker is not None and _looks_up(program, taker, position, found.axes):
        yield Exchange(UNKNOWN, found.axes, 0, f"the {taker.name.rpartition('.')[2]} looks up along a split dim")
    else:
        if _is_first(value) and (why := _other_way(program, op, taker)):
            yield Exchange(UNKNOWN, found.axes, 0, why)
        yield from gathers(program, value, before, after) if found.kind == "all-gather" else [found]


def _summed(program: Partitioned, op: Any, maker: Any, found: Exchange) -> Iterator[Exchange]:
    """A sum over a split dim."""
    if maker is not None and not _is_sum(maker):
        yield Exchange("all-gather", found.axes, found.bytes * program.graph.parts(found.axes), "")
        return
    yield found
    sides = _contracted(program, maker, found.axes) if maker is not None else []
    if alone := [axis for axis in found.axes if sum(axis in axes for axes in sides) == 1 < len(sides)]:
        over = " × ".join(alone)
        why = f"of a product, one operand is whole where {over} splits the other: the compiler may gather that"
        yield Exchange(UNKNOWN, alone, 0, why)
    if (
        sides
        and _unused(program, maker)
        and any(use.owner.operation.name == "sdy.all_slice" for use in op.results[0].uses)
    ):
        yield Exchange(
            UNKNOWN, found.axes, 0, "a sum of which each device takes a part: the compiler may sum a part alone"
        )


def _contracted(program: Partitioned, op: Any, axes: Sequence[Axis]) -> list[list[Axis]]:
    """Of each operand of a product, those of the axes that split a dim it sums over, before the passes move it."""
    index = tag(op)
    rule = None if index is None else program.graph.operations[index].rule
    if rule is None or op.name != "stablehlo.dot_general":
        return []
    found: list[list[Axis]] = []
    for value, factors in zip(op.operands, rule.operands, strict=True):
        dims = zip(program.layout(_source(value)), factors, strict=True)
        found.append([axis for its, dim in dims if set(dim) & rule.summed for axis in its if axis in axes])
    return found


def _other_way(program: Partitioned, op: Any, taker: Any) -> str:
    """Why the compiler may move a value otherwise than the passes do; empty if it moves it alike."""
    steps = [op]
    while (uses := list(steps[-1].results[0].uses)) and len(uses) == 1 and uses[0].owner.operation.name in INSERTED:
        steps.append(uses[0].owner.operation)
    kinds = [kind for each in steps if (kind := INSERTED[each.name][0])]
    layouts = [program.layout(_source(op.operands[0])), program.layout(steps[-1].results[0])]
    if len(kinds) > 1 and set(kinds) != {"all-gather"}:
        return f"{_change(layouts)} takes several steps, in which the compiler differs"
    is_cut = program.layout(op.operands[0]) != layouts[0]
    if kinds == ["collective-permute"] and (is_cut or _idle(program, layouts)):
        return f"{_change(layouts)}: the compiler may permute over other axes"
    if taker is None:
        return ""
    is_split = taker.name == "stablehlo.sort" and kinds == ["all-gather"]
    if is_split or taker.name == "stablehlo.reshape" or (taker.name == "stablehlo.while" and kinds != ["all-gather"]):
        return f"{_change(layouts)} for a {taker.name.rpartition('.')[2]}, which the compiler may split otherwise"
    if taker.name == "stablehlo.dot_general" and (kinds != ["all-gather"] or _has_choice(program, taker, layouts)):
        return f"{_change(layouts)} for a product, of which the compiler may move another operand"
    return ""


def _has_choice(program: Partitioned, product: Any, moved: Sequence[Sequence[list[Axis]]]) -> bool:
    """Whether the compiler can compute a product otherwise than with a gathered operand."""
    graph = program.graph
    gathered = [axis for axis in _axes(moved[:1]) if axis not in _axes(moved[1:])]
    if graph.parts(_unused(program, product)) >= graph.parts(gathered):
        return True
    sides = _contracted(program, product, list(graph.mesh))
    return any(sum(axis in axes for axes in sides) == 1 for axis in _axes([sides]) if axis not in gathered)


def _unused(program: Partitioned, product: Any) -> list[Axis]:
    """The axes that split no value of a product, as the passes find it."""
    return _idle(program, [program.layout(value) for value in (*map(_source, product.operands), *product.results)])


def _idle(program: Partitioned, layouts: Sequence[Sequence[list[Axis]]]) -> list[Axis]:
    used = {axis.partition(":")[0] for axis in _axes(layouts)}
    return [axis for axis in program.graph.mesh if axis not in used]


def _axes(layouts: Iterable[Sequence[list[Axis]]]) -> list[Axis]:
    return list(dict.fromkeys(axis for layout in layouts for axes in layout for axis in axes))


def _change(layouts: Sequence[Sequence[list[Axis]]]) -> str:
    return f"from {formatting.spec(layouts[0])} to {formatting.spec(layouts[1])}"


def _is_cut(program: Partitioned, op: Any) -> bool:
    """Whether the passes cut the first operand of an operation, which is whole."""
    value = op.operands[0] if op.operands else None
    return value is not None and _is_inserted(value) and not any(program.layout(_source(value)))


def _is_first(value: Any) -> bool:
    """Whether the passes have at most cut the value until here."""
    while _is_inserted(value):
        op = value.owner.operation
        if INSERTED[op.name][0]:
            return False
        value = op.operands[0]
    return True


def _source(value: Any) -> Any:
    """The value before the passes move it."""
    while _is_inserted(value):
        value = value.owner.operation.operands[0]
    return value


def _made_whole(program: Partitioned, value: Any, axes: list[Axis]) -> bool:
    """Whether every device has the result of a custom call along the dims that these axes split."""
    value = _source(value)
    maker = value.owner.operation
    index = tag(maker)
    rule = None if index is None else program.graph.operations[index].rule
    if maker.name != CUSTOM_CALL or rule is None:
        return False
    dims = zip(program.layout(value), rule.results[list(maker.results).index(value)], strict=True)
    return all(set(factors) & rule.replicated for its, factors in dims if set(its) & set(axes))


def _looks_up(program: Partitioned, taker: Any, position: int, axes: list[Axis]) -> bool:
    """Whether a gather or scatter takes an operand along these axes by indices."""
    index = tag(taker)
    rule = None if index is None else program.graph.operations[index].rule
    if rule is None or taker.name not in ("stablehlo.gather", "stablehlo.scatter") or position >= len(rule.operands):
        return False
    dims = zip(program.layout(_source(taker.operands[position])), rule.operands[position], strict=True)
    by = _axes([program.layout(taker.operands[1])])
    if by and set(by) < set(axes):
        return True
    return any(set(its) & set(axes) and set(factors) & (rule.summed | rule.replicated) for its, factors in dims)


def _taker(op: Any) -> tuple[Any, int]:
    """The operation that takes a value that was moved, if it is the only one, and as which operand."""
    position = 0
    while op.name in INSERTED:
        uses = list(op.results[0].uses)
        if len(uses) != 1:
            return None, 0
        op, position = uses[0].owner.operation, uses[0].operand_number
    return op, position


def _maker(value: Any) -> Any:
    """The operation that computes a value before it is moved; None for an argument."""
    value = _source(value)
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _is_made(maker: Any) -> bool:
    """Whether every device can make the whole value by itself."""
    return maker is not None and bool(WITHOUT_DATA.fullmatch(maker.name))


def _is_inserted(value: Any) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name in INSERTED


def _whole(layout: Sequence[list[Axis]]) -> list[list[Axis]]:
    return [[] for _ in layout]


def _is_sum(maker: Any) -> bool:
    """Whether devices can combine their results of an operation by an all-reduce."""
    if maker.name != "stablehlo.reduce":
        return True
    body = list(maker.regions[0].blocks[0].operations)
    return len(body) == 2 and body[0].operation.name in COMBINERS


def is_whole(program: Partitioned, op: Any) -> bool:
    """Whether XLA's partitioner gathers the operands of an operation: along every dim, or for a slice at an index."""
    if op.name == "stablehlo.dynamic_slice":
        value = _source(op.operands[0])
        sizes = zip(program.layout(value), _shape(value), _shape(op.results[0]), strict=True)
        return any(axes and size != taken for axes, size, taken in sizes)
    return op.name in UNSPLIT or _is_top_k(program, op)


def _is_top_k(program: Partitioned, op: Any) -> bool:
    index = tag(op)
    is_named = index is not None and program.graph.operations[index].place.op_name.endswith("top_k")
    return is_named and op.name == "stablehlo.sort"


def _is_from_whole(program: Partitioned, maker: Any) -> bool:
    """Whether every device has what an operation computes: from whole operands, or a slice of that."""
    while maker is not None and maker.name == "stablehlo.slice":
        maker = _maker(maker.operands[0])
    return maker is not None and is_whole(program, maker)


class _Exchanges:
    def __init__(self, program: Partitioned, op: Any) -> None:
        self._program, self._op = program, op
        self._given = [program.layout(value) if _is_tensor(value) else [] for value in op.operands]
        self._made = [program.layout(value) if _is_tensor(value) else [] for value in op.results]
        index = tag(op)
        self._operation = None if index is None else program.graph.operations[index]
        self._word = word(self._operation) if self._operation else op.name.rpartition(".")[2]

    def found(self) -> Iterator[Exchange]:
        op, split = self._op, _axes([*self._given, *self._made])
        if op.name == CUSTOM_CALL and (why := self._call_is_unknown()):
            yield self._unknown(split, why)
        elif not split or WITHOUT_DATA.fullmatch(op.name):
            return
        elif is_whole(self._program, op) and any(map(_is_inserted, op.operands)):
            return  # `inserted` has gathered it
        elif op.name in UNSPLIT or _is_top_k(self._program, op):
            yield from self._gathered(range(len(self._given)))
        elif op.operands and _is_from_whole(self._program, _maker(op.operands[0])):
            return
        elif self._operation is None or self._operation.rule is None:
            yield from self._without_rule(split)
        else:
            yield from self._by_rule(self._operation.rule)

    def _unknown(self, axes: Sequence[Axis], why: str) -> Exchange:
        return Exchange(UNKNOWN, list(axes), 0, why)

    def _call_is_unknown(self) -> str:
        """Why a custom call may communicate; empty if it does not, apart from its operands."""
        target = ir.StringAttr(self._op.attributes[TARGET]).value
        if self._program.graph.parts(list(self._program.graph.mesh)) == 1 or LOCAL_CALLS.match(target):
            return ""
        settings = str(self._op.attributes["backend_config"]) if "backend_config" in self._op.attributes else ""
        if target == "tpu_custom_call":
            if COMMUNICATES in settings.replace(" ", "").replace("\\22", '"').replace('\\"', '"'):
                return "a Pallas kernel that copies to other devices by itself"
            return "a Pallas kernel, whose operands are split outside it" if _axes(self._given) else ""
        if CALLBACK.search(target):
            return "a callback, whose operands go to one device" if _axes(self._given) else ""
        return f"the custom call {target}: what it does is not in the program"

    def _without_rule(self, split: list[Axis]) -> Iterator[Exchange]:
        if self._op.name == CUSTOM_CALL and LOCAL_CALLS.match(target(self._op)) and _axes(self._given):
            yield from self._gathered(range(len(self._given)))
        else:
            yield self._unknown(split, f"the {self._word}: how it is split is not in the program")

    def _whole(self, position: int, needed: list[list[Axis]], why: str) -> Iterator[Exchange]:
        """Gathers an operand along the axes of `needed`."""
        given = self._given[position]
        after = [[axis for axis in axes if axis not in its] for axes, its in zip(given, needed, strict=True)]
        return gathers(self._program, self._op.operands[position], given, after, why)

    def _gathered(self, operands: Iterable[int]) -> Iterator[Exchange]:
        for position in operands:
            if _is_made(_maker(self._op.operands[position])):
                continue
            why = f"operand {position} of the {self._word} is needed whole"
            yield from self._whole(position, self._given[position], why)

    def _by_rule(self, rule: Rule) -> Iterator[Exchange]:
        """Of each dim that is split along a factor that does not pass through."""
        kept = {factor for result in rule.results for factors in result for factor in factors} | rule.summed
        for position, factors in enumerate(rule.operands):
            given = self._given[position]
            needed = [
                axes if set(its) & rule.replicated or not set(its) <= kept else []
                for axes, its in zip(given, factors, strict=True)
            ]
            why = f"operand {position} of the {self._word} is needed whole"
            yield from self._whole(position, needed, why)
        shifted = [self._given[0][dim] for dim, window in _windows(self._op).items() if window != Window(0)]
        if _is_cut(self._program, self._op):
            return  # every device has the whole operand
        if moved := list(dict.fromkeys([*self._axes_along(rule, rule.moved), *_axes([shifted])])):
            yield from self._moved(moved)
        if self._op.name == CUSTOM_CALL and target(self._op) == PARTITIONED_BY_CODE:
            why = f"the custom call {target(self._op)}: its partition may call collectives of its own"
            yield self._unknown(_axes(self._given), why)

    def _axes_along(self, rule: Rule, chosen: set[int]) -> list[Axis]:
        """The axes that split a dim of an operand or a result along one of these factors."""
        sides = [*zip(self._given, rule.operands, strict=False), *zip(self._made, rule.results, strict=False)]
        dims = (pair for layout, factors in sides for pair in zip(layout, factors, strict=False))
        return list(dict.fromkeys(axis for axes, its in dims if set(its) & chosen for axis in axes))

    def _moved(self, axes: list[Axis]) -> Iterator[Exchange]:
        op = self._op
        what = f"the {self._word} moves elements along a dim that {' × '.join(axes)} splits"
        if op.name == "stablehlo.reverse":
            yield Exchange("collective-permute", axes, self._program.bytes(op.operands[0], self._given[0]), what)
        elif op.name == "stablehlo.concatenate" and (shift := rolled(op)) is not None:
            yield from self._rolled(shift, what)
        elif op.name == "stablehlo.slice" and all(
            rolled(use.owner.operation) is not None for use in op.results[0].uses
        ):
            return  # part of a roll
        elif windows := self._windows(axes):
            for dim, window in windows.items():
                yield from self._halo(dim, window, what)
        else:
            yield self._unknown(axes, what)

    def _windows(self, axes: list[Axis]) -> dict[int, Window]:
        """The windows of the dims that these axes split; none if they split another value or dim as well."""
        given, made = self._given[0], self._made[0]
        windows = _windows(self._op).items()
        found = {dim: window for dim, window in windows if set(axes) & {*given[dim], *made[dim]}}
        others = (its for layout in self._given[1:] for its in layout if set(its) & set(axes))
        return found if not any(others) and all(given[dim] == made[dim] for dim in found) else {}

    def _halo(self, dim: int, window: Window, why: str) -> Iterator[Exchange]:
        """What each device takes from the parts of others; all of it where a window is as wide as the dim."""
        axes, sizes = self._given[0][dim], [_shape(side)[dim] for side in (self._op.operands[0], self._op.results[0])]
        count = self._program.graph.parts(axes)
        part, made = (-(-size // count) for size in sizes)
        begin, end = window.taken(0, made)
        if window.size > 1 and end - begin >= part * count:
            left = [[] if index == dim else its for index, its in enumerate(self._given[0])]
            yield Exchange("all-gather", axes, self._program.bytes(self._op.operands[0], left), why)
            return
        taken = dict[int, tuple[int, int]]()
        for device in range(count):
            results = device * made, min((device + 1) * made, sizes[1])
            if results[0] < results[1]:
                begin, end = window.taken(*results)
                for other in range(max(0, begin) // part, -(-min(end, sizes[0]) // part)):
                    first, last = max(begin - other * part, 0), min(end - other * part, part)
                    known = taken.get(other - device, (first, last))
                    taken[other - device] = min(first, known[0]), max(last, known[1])
        if len(axes) > 1 and any(abs(distance) > 1 for distance in taken):
            yield self._unknown(axes, f"{why}, from more than its neighbors")
        else:
            yield from self._permuted(dim, {distance: last - first for distance, (first, last) in taken.items()}, why)

    def _rolled(self, shift: int, why: str) -> Iterator[Exchange]:
        dim = _number(self._op, "dimension")
        axes, size = self._made[0][dim], _shape(self._op.results[0])[dim]
        count = self._program.graph.parts(axes)
        part = -(-size // count)
        whole, rest = divmod(shift % size, part)
        taken = {whole % count: part - rest, (whole + 1) % count: rest}
        yield from self._permuted(dim, taken, why, is_ring=True)

    def _permuted(self, dim: int, taken: dict[int, int], why: str, is_ring: bool = False) -> Iterator[Exchange]:
        """Yields the permutes: `taken` has, by the distance of the devices, the elements that move along the dim."""
        value, layout = self._op.results[0] if is_ring else self._op.operands[0], self._made[0]
        axes = layout[dim]
        part = -(-_shape(value)[dim] // self._program.graph.parts(axes))
        each = self._program.bytes(value, layout) // part if part else 0
        for distance, rows in sorted(taken.items()):
            if distance and rows > 0:
                crossed = self._crossed(axes, distance, is_ring)
                yield Exchange("collective-permute", crossed, rows * each, why)

    def _crossed(self, axes: list[Axis], distance: int, is_ring: bool) -> list[Axis]:
        """The axes along which a device differs from the one at this distance in the order of the parts."""
        graph, count = self._program.graph, self._program.graph.parts(axes)
        pairs = [(device, device + distance) for device in range(count) if is_ring or 0 <= device + distance < count]
        found, minor = list[Axis](), 1
        for axis in reversed(axes):
            size = graph.parts([axis])
            if any(one // minor % size != other // minor % size for one, other in pairs):
                found.insert(0, axis)
            minor *= size
        return found


def rolled(op: Any) -> int | None:
    """Returns by how many elements a concatenation rolls a value along its dim: it joins the end with the begin."""
    if op.name != "stablehlo.concatenate" or len(op.operands) != 2:
        return None
    parts = [value.owner.operation for value in op.operands if not isinstance(value.owner, ir.Block)]
    if [part.name for part in parts] != ["stablehlo.slice"] * 2 or parts[0].operands[0] != parts[1].operands[0]:
        return None
    dim = _number(op, "dimension")
    size = _shape(parts[0].operands[0])[dim]
    begins, ends = ([_numbers(part, name, [])[dim] for part in parts] for name in ("start_indices", "limit_indices"))
    is_roll = _shape(op.results[0])[dim] == size and begins[0] == ends[1] and (begins[1], ends[0]) == (0, size)
    return size - begins[0] if is_roll else None


def _windows(op: Any) -> dict[int, Window]:
    """The window along each dim of the first operand that an operation moves; empty for an operation without any."""
    rank = len(_shape(op.operands[0]))
    ones = [1] * rank
    match op.name:
        case "stablehlo.slice":
            begins, strides = _numbers(op, "start_indices", []), _numbers(op, "strides", ones)
            return {dim: Window(-begins[dim], strides[dim]) for dim in range(rank)}
        case "stablehlo.pad":
            low, between = _numbers(op, "edge_padding_low", []), _numbers(op, "interior_padding", [])
            return {dim: Window(low[dim], spread=between[dim] + 1) for dim in range(rank)}
        case "stablehlo.reduce_window" if len(op.results) == 1:
            names = ("window_strides", "window_dimensions", "window_dilations", "base_dilations")
            strides, sizes, steps, spreads = (_numbers(op, name, ones) for name in names)
            edges = _edges(op, rank)
            return {dim: Window(edges[dim], strides[dim], sizes[dim], steps[dim], spreads[dim]) for dim in range(rank)}
        case "stablehlo.convolution":
            return _windows_of_convolution(op)
        case _:
            return {}


def _windows_of_convolution(op: Any) -> dict[int, Window]:
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial, kernel = list(dims.input_spatial_dimensions), _shape(op.operands[1])
    ones = [1] * len(spatial)
    strides, steps, spreads = (_numbers(op, name, ones) for name in ("window_strides", "rhs_dilation", "lhs_dilation"))
    edges, sizes = _edges(op, len(spatial)), [kernel[dim] for dim in dims.kernel_spatial_dimensions]
    if list(dims.output_spatial_dimensions) != spatial:
        return {}
    windows = map(Window, edges, strides, sizes, steps, spreads)
    return dict(zip(spatial, windows, strict=True))


def _edges(op: Any, rank: int) -> list[int]:
    """The padding before each dim."""
    if "padding" not in op.attributes:
        return [0] * rank
    flat = list(ir.DenseIntElementsAttr(op.attributes["padding"]))
    return flat[::2]


def _numbers(op: Any, name: str, default: list[int]) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else default


def _number(op: Any, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def target(op: Any) -> str:
    return ir.StringAttr(op.attributes[TARGET]).value


def _is_tensor(value: Any) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _shape(value: Any) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)
