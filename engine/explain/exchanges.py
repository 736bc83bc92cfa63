"""What an operation of a partitioned program exchanges between devices besides the collectives of Shardy's passes.

`exchanges` decides it for every operation. Shardy's rule of an operation divides its dims into factors. Along one that
passes through, each device computes its part from its own parts, and for one that is summed the passes insert a
collective. Two kinds of factors are left to XLA's partitioner: those along which an operation moves elements (slices,
windows, reversals) and those that it needs whole. Traffic is estimated where the partitioned form is known, and unknown
for all other operations.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

from ..hlo.device_groups import axes_of
from .graph import CUSTOM_CALL, Axis, Rule, word
from .partitioned import Partitioned, shape_of, tag
from .reshards import (
    GATHERED_BY_SOME,
    REDUCTION,
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
    unknown,
)
from .windows import Window, roll_of, windows_of

RAGGED_EXCHANGE = "ragged_all_to_all"
PARTITIONED_BY_CODE = "CustomSPMDPartitioning"
KERNEL = "tpu_custom_call"
LOCAL_CALLS = re.compile(
    r"(lapack_|cusolver|cublas|cudnn|hipsolver|hipblas|rocsolver|__gpu\$xla\.gpu\.triton|__triton|triton_kernel_call|"
    r"cu_threefry|hip_threefry|Sharding$|annotate_device_placement$|LayoutConstraint$|ApproxTopK|mhlo\.|chlo\.|"
    r"CustomSPMDPartitioning$|xla\.sdy)"
)
"""Custom calls that compute on one device."""
ON_PARTS = {
    KERNEL: "a Pallas kernel, whose operands are split outside it",
    "callback": "a callback, whose operands go to one device",
    **dict.fromkeys(
        ("Qr", "ProductOfElementaryHouseholderReflectors", "Eigh", "LuDecomposition"),
        "a decomposition: the TPU's compiler makes loops of it before it splits them",
    ),
}
"""Words in the names of calls that are known only without split operands."""
COMMUNICATES = '"has_communication":true'


def exchanges(program: Partitioned, op: Any) -> list[Exchange]:
    """Returns what an operation exchanges, in the order of the dims; empty if it is known to need nothing."""
    found = _Exchanges(program, op)
    return [*found.from_one_device(), *found.found()]


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
        rule = self._program.rule(op)
        if op.name == CUSTOM_CALL and (why := self._call_is_unknown()):
            yield unknown(split, why)
        elif not split or WITHOUT_DATA.fullmatch(op.name) or self._is_there():
            return
        elif op.name in GATHERED_BY_SOME:
            yield unknown(split, f"the {self._word} of whole dims: compilers differ in whether they gather it")
        elif is_unsplit(self._program, op) or (rule is None and op.name == CUSTOM_CALL and any(map(any, self._given))):
            yield from self._gathered(self._given)
        elif rule is None:
            yield unknown(split, f"the {self._word}: how it is split is not in the program")
        else:
            yield from self._by_rule(rule)

    def from_one_device(self) -> Iterator[Exchange]:
        """What only one device has: the others get all of it, and of a reduction its result."""
        program, op, axes = self._program, self._op, list(self._program.graph.mesh)
        for value in filter(_is_tensor, list(op.results) if program.graph.parts(axes) > 1 else []):
            takers = dict.fromkeys(program.takers(value)) if program.is_alone(value) else ()
            others = [taker for taker in takers if not _stays(program, taker)]
            reduced = [
                result for taker in others if taker.name == REDUCTION for result in taker.results if list(result.uses)
            ]
            whole = [value] if any(taker.name != REDUCTION for taker in others) else []
            for moved in (*whole, *reduced):
                why = f"only one device has what the {self._word} makes, and others take it"
                yield Exchange("all-reduce", axes, program.bytes(moved, [[]] * len(shape_of(moved))), why)
        if any(map(program.is_alone, op.operands)):
            gathered = [axis for axis in axes_of_layouts(self._given) if axis not in axes_of_layouts(self._made)]
            if gathered:
                yield unknown(gathered, f"the {self._word} takes a value that only one device has")

    def _is_there(self) -> bool:
        """Whether every device has the whole operand: `inserted` has gathered it."""
        program, op = self._program, self._op
        if is_whole(program, op) and any(map(program.is_gathered, op.operands)):
            return True
        return bool(op.operands) and is_from_whole(program, maker_of(program, op.operands[0]))

    def _call_is_unknown(self) -> str:
        """Why a custom call may communicate; empty if it does not, apart from its operands."""
        name, attributes = target(self._op), self._op.attributes
        if self._program.graph.parts(list(self._program.graph.mesh)) == 1 or LOCAL_CALLS.match(name):
            return ""
        settings = str(attributes["backend_config"]) if "backend_config" in attributes else ""
        if name == KERNEL and COMMUNICATES in re.sub(r'\\22|\\"', '"', settings.replace(" ", "")):
            return "a Pallas kernel that copies to other devices by itself"
        for part, why in ON_PARTS.items():
            if part in name:
                return why if axes_of_layouts(self._given) else ""
        return f"the custom call {name}: what it does is not in the program"

    def _gathered(self, needed: Sequence[Sequence[list[Axis]]]) -> Iterator[Exchange]:
        """Gathers operands along the axes of `needed`."""
        for position, (value, given) in enumerate(zip(self._op.operands, self._given, strict=True)):
            if not is_made(maker_of(self._program, value)):
                pairs = zip(given, needed[position], strict=True)
                after = [[axis for axis in axes if axis not in its] for axes, its in pairs]
                why = f"operand {position} of the {self._word} is needed whole"
                yield from gathers(self._program, value, given, after, why)

    def _by_rule(self, rule: Rule) -> Iterator[Exchange]:
        """Of each dim that is split along a factor that does not pass through."""
        program, op = self._program, self._op
        kept = {factor for result in rule.results for factors in result for factor in factors} | rule.summed
        yield from self._gathered(
            [
                [
                    axes if not set(its) <= kept - rule.replicated else []
                    for axes, its in zip(given, factors, strict=True)
                ]
                for given, factors in zip(self._given, rule.operands, strict=True)
            ]
        )
        if summed := self._axes_along(rule, rule.summed):
            yield from self._reduced(summed)
        if is_cut(program, op):
            return  # every device has the whole operand
        shifted = [self._given[0][dim] for dim, window in windows_of(op).items() if window != Window(0)]
        if moved := list(dict.fromkeys([*self._axes_along(rule, rule.moved), *axes_of_layouts([shifted])])):
            yield from self._moved(moved)
        if op.name == CUSTOM_CALL and target(op) == PARTITIONED_BY_CODE:
            why = f"the custom call {target(op)}: its partition may call collectives of its own"
            yield unknown(axes_of_layouts(self._given), why)

    def _reduced(self, axes: list[Axis]) -> Iterator[Exchange]:
        """A reduction by a function that no all-reduce has: each device gathers the results of all and reduces them."""
        op = self._op
        if not is_sum(op):
            parts, why = self._program.graph.parts(axes), f"the {self._word} is none that an all-reduce computes"
            for value, layout in zip(op.results, self._made, strict=True):
                yield Exchange("all-gather", axes, self._program.bytes(value, layout) * parts, why)
        elif not self._program.is_reduced(op, axes):
            yield unknown(axes, f"the {self._word} sums over a split dim, and the passes insert no all-reduce")

    def _axes_along(self, rule: Rule, chosen: set[int]) -> list[Axis]:
        """The axes that split a dim of an operand or a result along one of these factors."""
        sides = [*zip(self._given, rule.operands, strict=False), *zip(self._made, rule.results, strict=False)]
        dims = (pair for layout, factors in sides for pair in zip(layout, factors, strict=False))
        return list(dict.fromkeys(axis for axes, its in dims if set(its) & chosen for axis in axes))

    def _moved(self, axes: list[Axis]) -> Iterator[Exchange]:
        program, op = self._program, self._op
        why = f"the {self._word} moves elements along a dim that {' × '.join(axes)} splits"
        windows, roll = self._windows(axes), roll_of(op)
        if op.name == "stablehlo.reverse":
            yield Exchange("collective-permute", axes, program.bytes(op.operands[0], self._given[0]), why)
        elif op.name == "stablehlo.slice" and all(roll_of(use.owner.operation) for use in op.results[0].uses):
            return  # part of a roll
        elif not windows or (roll and program.is_moved(roll[0])):
            yield unknown(axes, why)
        for dim, window in windows.items():
            yield from self._slid(roll[0] if roll else op.operands[0], dim, window, why)

    def _windows(self, axes: list[Axis]) -> dict[int, Window]:
        """The windows of the dims that these axes split; none if they split another value or dim as well."""
        given, made = self._given[0], self._made[0]
        windows = windows_of(self._op).items()
        found = {dim: window for dim, window in windows if set(axes) & {*given[dim], *made[dim]}}
        if roll_of(self._op):
            return found
        others = (its for layout in self._given[1:] for its in layout if set(its) & set(axes))
        return found if not any(others) and all(given[dim] == made[dim] for dim in found) else {}

    def _slid(self, value: Any, dim: int, window: Window, why: str) -> Iterator[Exchange]:
        """What each device takes from the parts of others."""
        program, layout = self._program, self._made[0]
        sizes = shape_of(value)[dim], shape_of(self._op.results[0])[dim]
        axes, count = layout[dim], program.graph.parts(layout[dim])
        permutes = window.permutes(*sizes, count)
        if permutes is None:
            left = [[] if index == dim else its for index, its in enumerate(self._given[0])]
            yield Exchange("all-gather", axes, program.bytes(value, left), why)
            return
        depends_on_padding = len(axes) > 1 and not window.is_ring and any(size % count for size in sizes)
        if depends_on_padding and any(abs(source - to) > 1 for _, pairs in permutes for source, to in pairs):
            yield unknown(axes, f"{why}, in unequal parts and from more than its neighbors")
            return
        for rows, pairs in permutes:
            crossed = axes_of(pairs, {axis: program.graph.parts([axis]) for axis in axes})
            part = -(-sizes[0] // count)
            yield Exchange("collective-permute", crossed, rows * (program.bytes(value, layout) // part), why)


def target(op: Any) -> str:
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _stays(program: Partitioned, op: Any) -> bool:
    """Whether an operation is on one device, too."""
    return bool(op.results) and all(map(program.is_alone, op.results))


def _is_tensor(value: Any) -> bool:
    return isinstance(value.type, ir.RankedTensorType)
