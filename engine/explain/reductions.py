"""What XLA's compilers for TPU and GPU have in place of the all-reduces and all-gathers that Shardy's passes insert.

They add sums before they reduce them, and where each device takes only a part of a sum, they reduce-scatter. The CPU's
compiler does neither. Over whole slices of some shapes the TPU's gathers by an all-reduce.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxlib.mlir import ir

from ..spec.topology import Topology, spans
from .attributes import axes_in, owner_of
from .explanation import UNKNOWN
from .graph import CONVOLUTION, PRODUCTS, Axis
from .kernel_layouts import LANES, SUBLANES
from .lookups import LOOKUP, LOOKUPS
from .partitioned import Partitioned
from .reshards import Exchange, gathers, is_sum, is_uniform, maker_of
from .windows import REDUCE_WINDOW, in_blocks

REDUCE, SLICE, GATHER, ADD = "sdy.all_reduce", "sdy.all_slice", "sdy.all_gather", "stablehlo.add"
TRANSPOSE = "stablehlo.transpose"
ORDERS = ("stablehlo.convert", TRANSPOSE)
CARRIES = {
    *(ADD, *ORDERS),
    *(f"stablehlo.{name}" for name in ("divide", "multiply", "negate", "reshape", "select", "subtract")),
}
"""Operations of which a part needs only that part of their operands."""
UPDATES = 2
"""The place of the updates among the operands of a scatter."""
MOVES = {LOOKUP, *(f"stablehlo.{name}" for name in ("reshape", "select", "transpose"))}
"""Operations that only choose or order elements."""
LANE_BYTES = 4
MANY, MOST_SUMMED = 64, 2**24
"""Devices of a slice of two dims from which gathers of so many bytes at most are all-reduces."""


class Reductions:
    """`topology`: what the compiler is for; None for no compiler in particular, of which only `kept` is known. `spans`:
    how many slices each mesh axis spans, if it is more than one."""

    def __init__(self, program: Partitioned, topology: Topology | None, spans: Mapping[str, int] | None = None) -> None:
        self._program, self._topology, self._spans = program, topology, spans or {}
        self.is_tpu = topology is not None and topology.platform == "tpu"
        self.chooses_first = topology is not None and topology.chip.cores == 1
        """Whether each device chooses its own largest elements first: for tpu7x libtpu 0.0.42 does, 0.0.50 does not."""
        self._keeps_parts = topology is not None and topology.chip.cores > 1
        """Whether these are tpu7x, whose compiler never gathers a value of which devices take only parts."""

    def kept(self, op: Any) -> list[Axis]:
        """Returns the axes of an all-reduce over which each device takes only its own part of the sum."""
        axes = axes_in(op.attributes["reduction_axes"])
        return self._cut(axes, self._parts(op.results[0], set(axes)))

    def of(self, op: Any, found: Exchange) -> list[Exchange]:
        """Returns the collectives that an all-reduce becomes. There is none if it becomes part of another, or computes
        what no all-reduce can. `found`: the all-reduce."""
        maker = maker_of(self._program, op.operands[0])
        if maker is not None and not is_sum(maker):
            return []
        axes = found.axes
        value = added = op.results[0]
        while (adder := _adder(part := _sliced(added), set(axes))) is not None:
            if adder.operands[0] == part:
                return []
            value = adder.results[0] if part == value else value
            added = adder.results[0]
        parts = self._parts(value, set(axes))
        cut = self._cut(axes, parts)
        if not cut or not all(self._scatters(op, part, set(cut)) for part in parts):
            return [found]
        rest = [axis for axis in axes if axis not in cut]
        if rest and not _is_product(op):
            return [found]
        scattered = found._replace(kind="reduce-scatter", axes=cut)
        part = found.bytes // self._program.graph.parts(cut)
        return [scattered, found._replace(axes=rest, bytes=part)] if rest else [scattered]

    def is_unneeded(self, gather: Any) -> bool:
        """Whether a gather is left out, because each device takes only its own part of the result."""
        given, made = (self._axes(value) for value in (gather.operands[0], gather.results[0]))
        return self._keeps_parts and bool(self._parts(gather.results[0], given - made))

    def sums_to_gather(self, value: Any, axes: list[Axis]) -> bool:
        """Whether the compiler has an all-reduce in place of the gather that makes this value. For TPUs it has, over
        all devices of a slice: if it is one of several slices, and its three dims are rings; and if it has two dims and
        64 chips or more, but for v6e:16x16, for at most 16 MiB with rows padded. Found by compiling gathers of many
        shapes on many slices (libtpu 0.0.42 and 0.0.50)."""
        program, topology = self._program, self._topology
        if topology is None or not self.is_tpu:
            return False
        devices = topology.devices // topology.slices
        if program.graph.parts(axes) != devices:
            return False
        if len(topology.shape) == 3:
            return topology.slices > 1 and all(topology.rings)
        *outer, rows, lanes = 1, 1, *program.part(value, program.layout(value))
        padded = [*outer, -(-rows // SUBLANES) * SUBLANES, -(-lanes // LANES) * LANES, program.itemsize(value)]
        return devices >= MANY and math.prod(padded) <= MOST_SUMMED and topology.name != "v6e:16x16"

    def moved(self, op: Any, found: Exchange) -> Iterable[Exchange]:
        """Returns what the compiler has in place of one of the collectives that the inserted `op` becomes."""
        return self._looked_up(op, found) if found.kind == UNKNOWN else [self._gathered(op.results[0], found)]

    def exchanged(self, op: Any, found: Exchange) -> Exchange:
        """Returns what an operation exchanges by itself; for sums up to each element TPUs exchange sums of blocks."""
        if self.is_tpu and op.name == REDUCE_WINDOW and found.kind == "all-gather":
            return found._replace(bytes=in_blocks(self._program, op, found.bytes))
        moved = op.operands[0] if op.name == CONVOLUTION else op.results[0]
        return self._gathered(moved, found) if found.kind == "collective-permute" else found

    def _gathered(self, value: Any, found: Exchange) -> Exchange:
        """What is moved: by TPUs as bfloat16 if a float32 value is read only as that, and by some in an all-reduce."""
        if found.kind not in ("all-gather", "collective-permute"):
            return found
        is_summed = found.kind == "all-gather" and self.sums_to_gather(value, found.axes)
        size = found.bytes // 2 if self.is_tpu and self._is_read_as_bfloat16(value) else found.bytes
        return found._replace(kind="all-reduce" if is_summed else found.kind, bytes=size)

    def _looked_up(self, op: Any, found: Exchange) -> Iterator[Exchange]:
        """The collectives of a lookup along a dim that the same axes split as its indices, for which the passes
        insert `op`. Compilers gather the table; of its gradient each device adds up its own part of the updates, and
        these are summed. They gather the updates of a larger table, and those that are not added. `found`: unknown
        traffic, which stays so for other indices."""
        program = self._program
        taker, position = program.taker(op)
        if taker is None or taker.name not in LOOKUPS or not self._splits_indices(taker, found.axes):
            yield found
        elif taker.name == LOOKUP or not self._adds_up(taker, set(found.axes)):
            value, moved = op.operands[0], op.results[0]
            for each in gathers(program, value, program.layout(value), program.layout(moved)):
                yield self._gathered(moved, each)
        elif position == UPDATES:
            yield from self._added_up(taker, found.axes)

    def _splits_indices(self, op: Any, axes: list[Axis]) -> bool:
        return self._topology is not None and set(axes) <= self._axes(self._program.source(op.operands[1]))

    def _adds_up(self, op: Any, axes: set[Axis]) -> bool:
        """Whether each device adds its own updates to a table."""
        program, sides = self._program, (op.operands[0], op.operands[UPDATES])
        size, its = (program.bytes(value, [[] for _ in program.layout(value)]) for value in sides)
        return is_sum(op) and (size <= its or not axes <= self._axes(op.results[0]))

    def _added_up(self, op: Any, axes: list[Axis]) -> Iterator[Exchange]:
        program, result = self._program, op.results[0]
        is_split = set(axes) <= self._axes(result)
        parts = [result] if is_split else self._parts(result, set(axes))
        is_scattered = bool(parts) and all(
            set(axes) <= self._axes(part) and self._scatters(op, part, set(axes)) for part in parts
        )
        size = program.bytes(result, program.layout(result)) * (program.graph.parts(axes) if is_split else 1)
        yield from self._scattered_into(op)
        yield Exchange("reduce-scatter" if is_scattered else "all-reduce", axes, size, "")

    def _scattered_into(self, op: Any) -> Iterator[Exchange]:
        """The gathers of the table that a scatter adds to, if that is not zeros. If only a sum takes its result,
        as of a table's gradient and its momentum, the compiler scatters into the other value in place of zeros."""
        table, adder = op.operands[0], _taker(op.results[0])
        maker = maker_of(self._program, table)
        if maker is not None and is_uniform(maker):
            if adder is None or adder.name != ADD:
                return
            (table,) = (each for each in adder.operands if each != op.results[0])
        for each in gathers(self._program, table, layout := self._program.layout(table), [[] for _ in layout]):
            yield self._gathered(table, each)

    def _is_read_as_bfloat16(self, value: Any) -> bool:
        """Whether a float32 value is converted by all that read it, or multiplied in the TPU's default precision."""
        takers = list(self._program.takers(value)) if isinstance(value.type.element_type, ir.F32Type) else []
        return bool(takers) and all(map(self._reads_bfloat16, takers))

    def _reads_bfloat16(self, op: Any) -> bool:
        if op.name in MOVES:
            return self._is_read_as_bfloat16(op.results[0])
        is_converted = op.name == "stablehlo.convert" and isinstance(op.results[0].type.element_type, ir.BF16Type)
        return is_converted or _multiplies(op)

    def _cut(self, axes: list[Axis], parts: list[Any]) -> list[Axis]:
        return [axis for axis in axes if parts and all(axis in self._axes(part) for part in parts)]

    def _scatters(self, op: Any, part: Any, axes: set[Axis]) -> bool:
        """Whether the compiler has a reduce-scatter that gives each device this part. For GPUs and tpu7x it always has
        one. For other TPUs there is none across slices and inside them at once; none over a whole slice, unless
        `scatters_whole`; none along the lanes, unless the part has whole rows of 32 bits; and of more than two dims
        none along any, unless the part has whole rows. A product may lie either way if another dim has whole rows.
        Found by compiling sums of many shapes on many slices (libtpu 0.0.42 and 0.0.50)."""
        program, topology = self._program, self._topology
        assert topology is not None
        if self._keeps_parts or topology.chip.target:
            return True
        devices, slices = program.graph.parts(list(axes)), math.prod(self._spans.get(axis, 1) for axis in axes)
        if 1 < slices < devices or (devices >= topology.devices // topology.slices and not scatters_whole(topology)):
            return False
        stored = self._stored(part)
        layout = program.layout(stored)
        *outer, last = program.part(stored, layout)
        if axes & set(layout[-1]):
            lies_either_way = _is_product(op) and last % LANES and any(size % LANES == 0 for size in outer)
            return bool(lies_either_way) or last % (LANES * LANE_BYTES // program.itemsize(op.results[0])) == 0
        return len(outer) < 2 or all(
            size % LANES == 0 for size, its in zip(outer, layout[:-1], strict=True) if axes & set(its)
        )

    def _stored(self, value: Any) -> Any:
        """A value in the order of dims in which it is kept."""
        while (op := next(self._program.takers(value), None)) is not None and op.name in ORDERS:
            value = op.results[0]
        return value

    def _parts(self, value: Any, axes: set[Axis]) -> list[Any]:
        """The parts that devices take of a value; none if one of them takes the whole, or the compiler does not see
        that they do not: but for tpu7x, it follows a value with several takers no further than to their slices."""

        def is_part(op: Any) -> bool:
            return op.name == SLICE and bool(axes & self._axes(op.results[0]))

        found, waiting, seen = list[Any](), [value], {value}
        while waiting:
            value = waiting.pop()
            takers = list(self._program.takers(value))
            others = [op for op in takers if not is_part(op)]
            if not all(self._carries(op, value) for op in others):
                return []
            parts = [op.results[0] for op in takers if is_part(op)]
            carried = {op.results[0] for op in others} - seen
            if carried and len(parts) + len(carried) > 1 and not self._keeps_parts:
                return []
            found += parts
            seen |= carried
            waiting += carried
        return found

    def _carries(self, op: Any, value: Any) -> bool:
        """Whether the compiler computes a part of an operation from a part of a value: for GPUs only if no other
        operand is an array, but for another sum, to which this one is added before."""
        if op.name not in CARRIES:
            return False
        others = (owner_of(each) for each in op.operands if each != value)
        return not (self._topology and self._topology.chip.target) or all(
            other is not None and (other.name == REDUCE or is_uniform(other)) for other in others
        )

    def _axes(self, value: Any) -> set[Axis]:
        return {axis for axes in self._program.layout(value) for axis in axes}


def reductions_on(topology: Topology, program: Partitioned, mesh: Mapping[str, int]) -> Reductions:
    """Returns those of a program on a topology, whose devices fill `mesh` in this order. Raises UserError if they do
    not."""
    topology.check_mesh(mesh)
    return Reductions(program, topology, spans(mesh, topology.slices))


def scatters_whole(topology: Topology) -> bool:
    """Whether the TPU compiler reduce-scatters over all devices: over a ring, dims that differ, and 2 × 2 chips."""
    dims = [size for size in topology.shape if size > 1]
    return len(dims) < 2 or (len(dims) == 2 and (dims[0] != dims[1] or dims == [2, 2]))


def _multiplies(op: Any) -> bool:
    """Whether an operation is a product in the TPU's default precision, bfloat16."""
    return op.name in PRODUCTS and "HIGH" not in str(op.attributes.get("precision_config"))


def _is_product(op: Any) -> bool:
    return getattr(owner_of(op.operands[0]), "name", "") in PRODUCTS


def _taker(value: Any) -> Any:
    uses = list(value.uses)
    return uses[0].owner.operation if len(uses) == 1 else None


def _sliced(value: Any) -> Any:
    """The part that devices take of a value, if nothing else takes it; else the value."""
    taker = _taker(value)
    return taker.results[0] if taker is not None and taker.name == SLICE else value


def _adder(value: Any, axes: set[Axis]) -> Any:
    """The operation that adds a sum to another sum over the same axes and alone takes both; None without one."""
    op = _taker(value)
    return op if op is not None and op.name == ADD and all(_is_sum(each, axes) for each in op.operands) else None


def _is_sum(value: Any, axes: set[Axis]) -> bool:
    """Whether a value with one taker is a sum over these axes, or a part of one, or adds such sums."""
    waiting = [value]
    while waiting:
        op = owner_of(value := waiting.pop())
        if op is None or _taker(value) is None:
            return False
        if op.name in (ADD, SLICE):
            waiting += op.operands
        elif op.name != REDUCE or set(axes_in(op.attributes["reduction_axes"])) != axes:
            return False
    return True
