"""What an operation of a partitioned program exchanges between devices besides the collectives of Shardy's passes.

`exchanges` decides it for every operation. Shardy's rule of an operation divides its dims into factors. Along one that
passes through, each device computes its part from its own parts, and for one that is summed the passes insert a
collective. Two kinds of factors are left to XLA's partitioner: those along which an operation moves elements (slices,
windows, reversals) and those that it needs whole. Traffic is estimated where the partitioned form is known, and unknown
for all other operations.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

from .explanation import UNKNOWN
from .graph import Axis, Rule, word
from .partitioned import Partitioned, shape_of, tag
from .reshards import (
    CUSTOM_CALL,
    WITHOUT_DATA,
    Exchange,
    axes_of_layouts,
    gathers,
    is_cut,
    is_from_whole,
    is_made,
    is_sum,
    is_unsplit,
    is_whole,
    maker_of,
)
from .windows import Window, number, rolled, windows_of

RAGGED_EXCHANGE = "ragged_all_to_all"
PARTITIONED_BY_CODE = "CustomSPMDPartitioning"
TARGET = "call_target_name"
LOCAL_CALLS = re.compile(
    r"(lapack_|cusolver|cublas|cudnn|hipsolver|hipblas|rocsolver|__gpu\$xla\.gpu\.triton|__triton|triton_kernel_call|"
    r"cu_threefry|hip_threefry|Sharding$|annotate_device_placement$|LayoutConstraint$|Qr$|ProductOfElementaryHouse|Eigh$|"
    r"LuDecomposition$|ApproxTopK|mhlo\.|chlo\.|CustomSPMDPartitioning$|xla\.sdy)"
)
"""Custom calls that compute on one device."""
CALLBACK = re.compile(r"callback")
COMMUNICATES = '"has_communication":true'


def exchanges(program: Partitioned, op: Any) -> list[Exchange]:
    """Returns what an operation exchanges, in the order of the dims; empty if it is known to need nothing."""
    return list(_Exchanges(program, op).found())


class _Exchanges:
    def __init__(self, program: Partitioned, op: Any) -> None:
        self._program, self._op = program, op
        self._given = [program.layout(value) if _is_tensor(value) else [] for value in op.operands]
        self._made = [program.layout(value) if _is_tensor(value) else [] for value in op.results]
        index = tag(op)
        self._operation = None if index is None else program.graph.operations[index]
        self._word = word(self._operation) if self._operation else op.name.rpartition(".")[2]

    def found(self) -> Iterator[Exchange]:
        op, split = self._op, axes_of_layouts([*self._given, *self._made])
        if op.name == CUSTOM_CALL and (why := self._call_is_unknown()):
            yield self._unknown(split, why)
        elif not split or WITHOUT_DATA.fullmatch(op.name):
            return
        elif is_whole(self._program, op) and any(map(self._program.is_gathered, op.operands)):
            return  # `inserted` has gathered it
        elif op.name == "stablehlo.fft":
            yield self._unknown(split, "the fft of whole dims: versions of XLA differ in whether they gather it")
        elif is_unsplit(self._program, op):
            yield from self._gathered(range(len(self._given)))
        elif op.operands and is_from_whole(self._program, maker_of(self._program, op.operands[0])):
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
            return "a Pallas kernel, whose operands are split outside it" if axes_of_layouts(self._given) else ""
        if CALLBACK.search(target):
            return "a callback, whose operands go to one device" if axes_of_layouts(self._given) else ""
        return f"the custom call {target}: what it does is not in the program"

    def _without_rule(self, split: list[Axis]) -> Iterator[Exchange]:
        if self._op.name == CUSTOM_CALL and LOCAL_CALLS.match(target(self._op)) and axes_of_layouts(self._given):
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
            if is_made(maker_of(self._program, self._op.operands[position])):
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
        shifted = [self._given[0][dim] for dim, window in windows_of(self._op).items() if window != Window(0)]
        if summed := self._axes_along(rule, rule.summed):
            yield from self._reduced(summed)
        if is_cut(self._program, self._op):
            return  # every device has the whole operand
        if moved := list(dict.fromkeys([*self._axes_along(rule, rule.moved), *axes_of_layouts([shifted])])):
            yield from self._moved(moved)
        if self._op.name == CUSTOM_CALL and target(self._op) == PARTITIONED_BY_CODE:
            why = f"the custom call {target(self._op)}: its partition may call collectives of its own"
            yield self._unknown(axes_of_layouts(self._given), why)

    def _reduced(self, axes: list[Axis]) -> Iterator[Exchange]:
        """A reduction by a function that no all-reduce has: each device gathers the results of all and reduces them."""
        op = self._op
        if not is_sum(op):
            parts, why = self._program.graph.parts(axes), f"the {self._word} is none that an all-reduce computes"
            for value, layout in zip(op.results, self._made, strict=True):
                yield Exchange("all-gather", axes, self._program.bytes(value, layout) * parts, why)
        elif not self._program.is_reduced(op, axes):
            yield self._unknown(axes, f"the {self._word} sums over a split dim, and the passes insert no all-reduce")

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
        windows = windows_of(self._op).items()
        found = {dim: window for dim, window in windows if set(axes) & {*given[dim], *made[dim]}}
        others = (its for layout in self._given[1:] for its in layout if set(its) & set(axes))
        return found if not any(others) and all(given[dim] == made[dim] for dim in found) else {}

    def _halo(self, dim: int, window: Window, why: str) -> Iterator[Exchange]:
        """What each device takes from the parts of others; all of it where a window is as wide as the dim."""
        axes, sizes = self._given[0][dim], [shape_of(side)[dim] for side in (self._op.operands[0], self._op.results[0])]
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
        dim = number(self._op, "dimension")
        if self._program.is_moved(self._op.operands[0].owner.operation.operands[0]):
            yield self._unknown(self._made[0][dim], f"{why}, where the passes have moved its operand")
            return
        axes, size = self._made[0][dim], shape_of(self._op.results[0])[dim]
        count = self._program.graph.parts(axes)
        part = -(-size // count)
        whole, rest = divmod(shift % size, part)
        taken = {whole % count: part - rest, (whole + 1) % count: rest}
        yield from self._permuted(dim, taken, why, is_ring=True)

    def _permuted(self, dim: int, taken: dict[int, int], why: str, is_ring: bool = False) -> Iterator[Exchange]:
        """Yields the permutes: `taken` has, by the distance of the devices, the elements that move along the dim."""
        value, layout = self._op.results[0] if is_ring else self._op.operands[0], self._made[0]
        axes = layout[dim]
        part = -(-shape_of(value)[dim] // self._program.graph.parts(axes))
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


def target(op: Any) -> str:
    return ir.StringAttr(op.attributes[TARGET]).value


def _is_tensor(value: Any) -> bool:
    return isinstance(value.type, ir.RankedTensorType)
