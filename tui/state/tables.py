"""The columns of the tables that commands print and views show: arrays, collectives, buffers, operations, values."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from rich.text import Text

from ...engine.base import formatting
from ...engine.explain.explanation import UNKNOWN, CollectiveOrigin, ValueOrigin
from ...engine.hlo.layout import bytes_per_device, notation, replicas, shard_of, wasted_bytes
from ...engine.wire.collective import CollectiveInfo
from ...engine.wire.descriptions import ArrayInfo, MeshInfo, PeakBuffer
from ...engine.wire.step_breakdown import CollectiveTime, OperationTime, StepBreakdown
from ..terminal.axis_style import axes_text
from ..terminal.plain_table import Column, figure
from .explanation_words import ends
from .step_words import held_by, lifetime


@dataclass(frozen=True)
class ArrayRow:
    """An array, or a module with all arrays in it."""

    key: str
    """Identifies the row: the array's name, or the module's prefix."""
    label: str
    """The row's text: a name, or the last part of one."""
    depth: int
    """Levels of indentation."""
    arrays: tuple[ArrayInfo, ...]
    """The array, or all arrays in the module."""
    is_module: bool = False


def flat_rows(arrays: Iterable[ArrayInfo]) -> list[ArrayRow]:
    return [ArrayRow(array.name, array.name, 0, (array,)) for array in arrays]


def tree_rows(arrays: Iterable[ArrayInfo], mesh: MeshInfo, folded: set[str]) -> list[ArrayRow]:
    """Returns rows for kinds, then for modules by the dots in their names, at each level the most redundant first.

    `folded` holds the keys of the rows whose children are hidden.
    """
    kinds = _grouped(arrays, lambda array: array.kind)
    tops = [ArrayRow(f"{kind}:", f"{kind}s", 0, found, True) for kind, found in kinds.items()]
    return [row for top in _ordered(tops, mesh) for row in _subtree(top, mesh, folded, 0)]


def _subtree(row: ArrayRow, mesh: MeshInfo, folded: set[str], skip: int) -> list[ArrayRow]:
    """Returns `row` and the rows below it. The rows above show the first `skip` parts of a name."""
    if not row.is_module or row.key in folded:
        return [row]
    deeper = [array for array in row.arrays if array.name.count(".") > skip]
    modules = _grouped(deeper, lambda array: array.name.split(".")[skip])
    below = [
        ArrayRow(array.name, array.name.split(".")[skip], row.depth + 1, (array,))
        for array in row.arrays
        if array.name.count(".") == skip
    ]
    below += [ArrayRow(f"{row.key}{name}.", name, row.depth + 1, found, True) for name, found in modules.items()]
    children = (_subtree(child, mesh, folded, skip + 1) for child in _ordered(below, mesh))
    return [row, *(line for lines in children for line in lines)]


def _grouped(arrays: Iterable[ArrayInfo], key: Callable[[ArrayInfo], str]) -> dict[str, tuple[ArrayInfo, ...]]:
    groups: dict[str, tuple[ArrayInfo, ...]] = {}
    for array in arrays:
        groups[key(array)] = (*groups.get(key(array), ()), array)
    return groups


def _ordered(rows: Iterable[ArrayRow], mesh: MeshInfo) -> list[ArrayRow]:
    return sorted(rows, key=lambda row: -sum(wasted_bytes(array, mesh) for array in row.arrays))


MAX_CELL = 500
"""Characters of an operation or a source."""
REDUNDANT, DIMS, PAYLOAD = "redundant", "dims@axes", "payload"


def array_columns(mesh: MeshInfo, mark: Callable[[ArrayRow], str] = lambda row: "") -> list[Column[ArrayRow]]:
    """Returns the columns of arrays and modules. `mark`: what stands before a name."""

    def of_array(cell: Callable[[ArrayInfo], str | Text]) -> Callable[[ArrayRow], str | Text]:
        return lambda row: "" if row.is_module else cell(row.arrays[0])

    def total(name: str, size: Callable[[ArrayInfo, MeshInfo], int], leaves: int = 0) -> Column[ArrayRow]:
        return figure(name, lambda row: sum(size(array, mesh) for array in row.arrays), formatting.size, leaves)

    def copies(row: ArrayRow) -> int | None:
        return None if row.is_module else replicas(row.arrays[0].compiled_spec, mesh)

    def kind(row: ArrayRow) -> str:
        return formatting.counted(len(row.arrays), "array") if row.is_module else row.arrays[0].kind

    return [
        Column(
            "array",
            lambda row: Text("  " * row.depth + mark(row) + row.label, "bold" if row.is_module else ""),
            cut="left",
        ),
        Column(DIMS, of_array(lambda array: axes_text(notation(array), mesh.axes))),
        total("per device", bytes_per_device),
        figure("copies", copies, leaves=5),
        total(REDUNDANT, wasted_bytes, 6),
        total("bytes", lambda array, _: array.bytes, 3),
        Column(
            "shape",
            of_array(lambda array: formatting.shape(array.shape)),
            leaves=4,
            value=lambda row: prod(row.arrays[0].shape),
        ),
        Column("dtype", of_array(lambda array: array.dtype), style="dim", leaves=2),
        Column("kind", kind, style="dim", leaves=1),
    ]


def slice_column(device: int, mesh: MeshInfo) -> Column[ArrayRow]:
    """Returns the column of the index ranges that a device holds, written as slices: `[0:4, :]`."""

    def held(row: ArrayRow) -> str:
        array = row.arrays[0]
        box = shard_of(device, array.shape, array.compiled_spec, mesh)
        ranges = zip(box.start, box.stop, array.shape, strict=True)
        texts = (":" if (start, stop) == (0, size) else f"{start}:{stop}" for start, stop, size in ranges)
        return "" if row.is_module else f"[{', '.join(texts)}]"

    return Column(f"device {device} holds", held)


def moved(info: CollectiveInfo, most: int = 1) -> str:
    """Returns the arrays that a collective gathers, or the gradients that it sums, the largest first; empty if there
    are none."""
    names = [*info.gathered, *(name and f"grad.{name}" for name in info.reduced)]
    sized = sorted(zip(names, map(prod, info.shapes), strict=False), key=lambda each: -each[1])
    return formatting.listed([name for name in dict.fromkeys(name for name, _ in sized) if name], most)


def collective_columns(measured: Mapping[str, CollectiveTime] | None = None) -> list[Column[CollectiveInfo]]:
    """Returns the columns of compiled collectives. `measured`: their times by name, if a step was profiled."""

    def time(info: CollectiveInfo) -> float | None:
        found = (measured or {}).get(info.name)
        return found.waiting_seconds + found.exposed_seconds if found else None

    return [
        Column("collective", lambda info: info.kind),
        Column("over", lambda info: axes_text(formatting.over(info.axes, info.network), info.axes)),
        figure("times", lambda info: info.count, "{:,}".format, unknown="?"),
        figure(PAYLOAD, lambda info: info.bytes_each, formatting.size, 3),
        figure("sent/step", lambda info: info.bytes_sent, formatting.size, unknown="?"),
        *([figure("measured", time, formatting.seconds)] if measured else []),
        Column("array", moved, leaves=4, cut="left"),
        Column("by", lambda info: "user" if info.written else Text("compiler", "dim"), leaves=2),
        Column("source", lambda info: _cut(formatting.short_source(info.source)), cut="left"),
        Column("operation", lambda info: _cut(formatting.op(info.op_name)), leaves=1, cut="left"),
    ]


BUFFERS: Sequence[Column[PeakBuffer]] = (
    figure("bytes", lambda buffer: buffer.bytes, formatting.size),
    figure("padding", lambda buffer: buffer.padding or None, formatting.size, 2),
    Column("live", lifetime, is_figure=True, leaves=4, value=lambda buffer: buffer.begin),
    Column("is", lambda buffer: buffer.kind, leaves=3),
    Column("source", lambda buffer: formatting.short_source(buffer.source), cut="left"),
    Column("layout", lambda buffer: buffer.layout, style="dim", leaves=1),
    Column("holds", held_by),
)
"""Of what fills the memory at the peak of a step."""


def by_source(buffers: Sequence[PeakBuffer]) -> list[PeakBuffer]:
    """Returns the buffers of one source line together, an argument alone; those with the most bytes first."""

    def group(buffer: PeakBuffer) -> str:
        return buffer.source or buffer.name

    sizes: Counter[str] = Counter()
    for buffer in buffers:
        sizes[group(buffer)] += buffer.bytes
    return sorted(buffers, key=lambda buffer: (-sizes[group(buffer)], group(buffer), -buffer.bytes))


def operation_columns(breakdown: StepBreakdown) -> list[Column[OperationTime]]:
    """Returns the columns of operations: time, rates compared with the chip's if they are known, and the code."""
    waits = {each.name: each for each in breakdown.collectives}

    def part(each: OperationTime) -> Text:
        return axes_text(each.part, waits[each.name].axes if each.name in waits else ())

    def wait(name: str, seconds: Callable[[CollectiveTime], float]) -> Column[OperationTime]:
        return figure(
            name, lambda each: seconds(waits[each.name]) if each.name in waits else None, formatting.seconds, 2
        )

    columns: list[Column[OperationTime]] = [
        Column("part", part),
        Column("module", lambda each: each.module, style="dim", cut="left"),
        figure("share", lambda each: each.seconds / breakdown.step_seconds, share),
        figure("time", lambda each: each.seconds, formatting.seconds),
        figure("times", lambda each: each.count, "{:,.3g}".format, 8),
        Column("source", lambda each: formatting.short_source(each.source), cut="left"),
        figure("FLOP/s", lambda each: each.flops_per_second, formatting.rate, 4),
        figure("MFU", lambda each: each.flops_share, share, 6),
        figure("bytes/s", lambda each: each.bytes_per_second, formatting.size, 3),
        figure("bandwidth", lambda each: each.bandwidth_share, share, 5),
        figure("roofline", lambda each: each.roofline_seconds, formatting.seconds, 1),
        wait("waiting", lambda each: each.waiting_seconds),
        wait("exposed", lambda each: each.exposed_seconds),
        wait("hidden", lambda each: each.hidden_seconds),
        Column("operation", lambda each: each.name, leaves=7),
    ]
    if all(each.roofline_seconds is None for each in breakdown.operations):
        return [column for column in columns if column.name not in ("MFU", "bandwidth", "roofline")]
    return columns


def share(value: float) -> str:
    """Formats a fraction with one digit after the point: `38.2 %`."""
    return f"{100 * value:.1f} %"


VALUES: Sequence[Column[tuple[str, ValueOrigin]]] = (
    Column("value", lambda each: each[0], cut="left"),
    Column("split over", lambda each: axes_text(each[1].layout if each[1].is_laid_out else "", chain(*each[1].axes))),
    Column("shape", lambda each: formatting.shape(each[1].shape), leaves=2, value=lambda each: prod(each[1].shape)),
    Column("dtype", lambda each: each[1].dtype, style="dim", leaves=1),
    Column("source", lambda each: formatting.short_source(each[1].source), cut="left"),
    Column("asked for by", lambda each: ends(each[1].origin), leaves=3),
)
"""Of explained values with their labels, each mesh axis with what asked for it."""

UNKNOWN_HERE = f"{UNKNOWN} here: --compile"
ESTIMATED_COLLECTIVES: Sequence[Column[CollectiveOrigin]] = (
    Column("collective", lambda each: UNKNOWN_HERE if each.kind == UNKNOWN else each.kind),
    Column("over", lambda each: axes_text(formatting.over(each.axes), each.axes)),
    figure("times", lambda each: each.count, "{:,}".format, unknown="?"),
    figure(PAYLOAD, lambda each: each.bytes, formatting.size, unknown="?"),
    Column("source", lambda each: formatting.short_source(each.source), cut="left"),
    Column("because", lambda each: each.because, leaves=1),
)
"""Of the collectives that the partitioner's passes estimate."""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…"
