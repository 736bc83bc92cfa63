"""A picture of one array's sharding: which device holds which shard, for any rank and any number of devices.

Arrays of one and two dims are drawn as `jax.debug.visualize_array_sharding` draws them. Of more dims two are drawn, at
first those that are split, and the user steps through the others.
"""

from collections.abc import Mapping, Sequence

import msgspec
from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device, coordinates, dim_name, holders, parts, replicas, shard_shape
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from .grid import FOLDED_CELL_WIDTH, Cell, Window, draw_grid, grid_capacity, window
from .lines import axes_content, cut

Part = tuple[int, ...]
"""The index of a shard along each dim."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """An array, and what of its sharding is drawn."""

    array: ArrayInfo
    mesh: MeshInfo
    platform: str
    """The platform of the devices, such as `cpu`."""
    rows: int | None
    """The dim along the rows; None for arrays of fewer than two dims."""
    columns: int | None
    """The dim along the columns; None for scalars."""
    cursor: Part
    """The shard under the cursor."""
    folds: bool = True
    """Whether a grid larger than the pane is folded instead of scrolled."""
    followed: int | None = None
    """The device whose shard is marked, None for none."""
    wrong: frozenset[int] = frozenset()
    """Devices that are marked with `✗`."""
    tints_by_row: bool = False
    """Whether the boxes of a row share a colour, instead of each having its own."""
    detail: str = ""
    """A second line in each box."""
    notes: Mapping[int, str] = {}
    """A third line in the box of one device, by its id."""

    @property
    def counts(self) -> Part:
        return parts(self.array.compiled_spec, self.mesh)

    @property
    def holders(self) -> dict[Part, list[int]]:
        return holders(self.array.compiled_spec, self.mesh)

    @property
    def stepped_dims(self) -> list[int]:
        flat = (self.rows, self.columns)
        return [dim for dim, count in enumerate(self.counts) if count > 1 and dim not in flat]


def initial_subject(array: ArrayInfo, mesh: MeshInfo, platform: str) -> Subject:
    """Returns the first view of an array: its split dims are drawn, or its last ones if none is split."""
    rank = len(array.shape)
    counts = parts(array.compiled_spec, mesh)
    if rank <= 2:
        rows, columns = (0 if rank == 2 else None, rank - 1 if rank else None)
    else:
        split = [dim for dim in range(rank) if counts[dim] > 1]
        unsharded = [dim for dim in reversed(range(rank)) if counts[dim] == 1]
        rows, columns = sorted([*split, *unsharded][:2])
    at = (0,) * rank
    return Subject(array=array, mesh=mesh, platform=platform, rows=rows, columns=columns, cursor=at)


def with_next_dim(subject: Subject, direction: str) -> Subject:
    """Returns the subject with the next dim along `rows` or `columns`; swaps the two if that dim is drawn already."""
    if subject.rows is None or subject.columns is None:
        return subject
    mine, other = ("rows", "columns") if direction == "rows" else ("columns", "rows")
    dim = (getattr(subject, mine) + 1) % len(subject.array.shape)
    if dim == getattr(subject, other):
        return msgspec.structs.replace(subject, **{mine: dim, other: getattr(subject, mine)})
    return msgspec.structs.replace(subject, **{mine: dim})


def next_slice(subject: Subject, step: int) -> Subject:
    """Returns the subject with its cursor one step along the split dims that are not drawn, the last one fastest."""
    cursor = list(subject.cursor)
    for dim in reversed(subject.stepped_dims):
        cursor[dim] += step
        if 0 <= cursor[dim] < subject.counts[dim]:
            break
        cursor[dim] %= subject.counts[dim]
    return msgspec.structs.replace(subject, cursor=tuple(cursor))


def with_cursor_moved(subject: Subject, down: int, right: int, width: int, height: int) -> Subject:
    """Returns the subject with its cursor moved by cells; a folded cell covers several shards."""
    cursor = list(subject.cursor)
    windows = _windows(subject, width, height)
    for dim, step, view in zip((subject.rows, subject.columns), (down, right), windows, strict=True):
        if dim is not None and step:
            at = cursor[dim] // view.fold * view.fold + step * view.fold
            cursor[dim] = min(max(0, at), subject.counts[dim] - view.fold)
    return msgspec.structs.replace(subject, cursor=tuple(cursor))


def size_summary(array: ArrayInfo, mesh: MeshInfo) -> str:
    copies = replicas(array.compiled_spec, mesh)
    each = f"{formatting.size(bytes_per_device(array, mesh))} per device"
    shape = formatting.shape(array.shape) if array.shape else "scalar"
    return (
        f"{array.dtype} {shape} · {formatting.size(array.bytes)}, {each}, {copies} {'copies' if copies > 1 else 'copy'}"
    )


def draw_sharding(subject: Subject, width: int, height: int, with_cursor: bool = False) -> list[Content]:
    """Returns at most `height` lines of `width` cells: a legend of the dims, then the grid."""
    head = [axes_content(text, subject.mesh.axes).stylize_before("$text-muted") for text in _legend(subject)]
    down, across = _windows(subject, width, height)
    holders = subject.holders
    cells = [
        [_cell(subject, holders, down.positions(y), across.positions(x)) for x in range(across.count)]
        for y in range(down.count)
    ]
    (_, y), (_, x) = _places(subject)
    cursor = (down.cell(y), across.cell(x))
    return [*head, *draw_grid(cells, cursor if with_cursor else None, width, height - len(head))][:height]


def label(platform: str, devices: Sequence[int], width: int, mesh: MeshInfo) -> str:
    """Returns the first that fits into `width` of `CPU 0,2,4,6`, `0,2,4,6`, `model 0 (4)`, `0…6 (4)` and `×4`."""
    devices = sorted(devices)
    numbers = ",".join(str(device) for device in devices)
    texts = (
        f"{platform.upper()} {numbers}",
        numbers,
        f"{_shared_axes(devices, mesh)} ({len(devices)})",
        f"{devices[0]}…{devices[-1]} ({len(devices)})",
        f"×{len(devices)}",
    )
    return next((text for text in texts if len(text) <= width), texts[-1])


def _shared_axes(devices: Sequence[int], mesh: MeshInfo) -> str:
    """Returns the mesh coordinates that these devices share, or a range of them: `data 0…1, model 0`."""
    known = coordinates(mesh)
    positions = [known[device] for device in devices]
    shared: list[str] = []
    for axis, size in mesh.axes.items():
        indices = {position[axis] for position in positions}
        first, last = min(indices), max(indices)
        if len(indices) < size and len(indices) == last - first + 1:
            shared.append(f"{axis} {first}" + (f"…{last}" if last > first else ""))
    return ", ".join(shared) or "all"


def _cell(subject: Subject, holders: dict[Part, list[int]], down: range, across: range) -> Cell:
    devices: list[int] = []
    for y in down:
        for x in across:
            part = list(subject.cursor)
            if subject.rows is not None:
                part[subject.rows] = y
            if subject.columns is not None:
                part[subject.columns] = x
            devices += holders.get(tuple(part), [])
    mark = "✗" * (not subject.wrong.isdisjoint(devices))
    note = subject.notes.get(devices[0], "") if len(devices) == 1 else ""
    return Cell(
        lambda width: mark + label(subject.platform, devices, width - len(mark), subject.mesh),
        subject.followed in devices,
        down.start if subject.tints_by_row else None,
        tuple(filter(None, (subject.detail, note))),
    )


def _windows(subject: Subject, width: int, height: int) -> tuple[Window, Window]:
    """Returns the windows on the dims along the rows and along the columns."""
    height -= len(_legend(subject))
    rows, columns = grid_capacity(width, height)
    _, folded_columns = grid_capacity(width, height, FOLDED_CELL_WIDTH)
    (down, y), (across, x) = _places(subject)
    return (window(down, rows, rows, y, subject.folds), window(across, columns, folded_columns, x, subject.folds))


def _places(subject: Subject) -> list[tuple[int, int]]:
    """Returns the number of shards along the rows and along the columns, each with the cursor's place among them."""
    flat = (subject.rows, subject.columns)
    return [(1, 0) if dim is None else (subject.counts[dim], subject.cursor[dim]) for dim in flat]


def _range(subject: Subject, dim: int, fold: int = 1) -> str:
    """Returns the indices of a dim in the cursor's shard, or in `fold` shards from it: `embed 0…15`."""
    array = subject.array
    size = shard_shape(array.shape, array.compiled_spec, subject.mesh)[dim]
    start = subject.cursor[dim] * size
    last = min(start + size * fold, array.shape[dim]) - 1
    return f"{dim_name(array, dim)} {start}" + (f"…{last}" if last > start else "")


def _legend(subject: Subject) -> list[str]:
    """Returns which dims run along rows and columns, and the index ranges of the others; empty for a scalar."""
    array, flat, stepped_dims = subject.array, (subject.rows, subject.columns), subject.stepped_dims
    rest = [dim for dim in range(len(array.shape)) if dim not in (*flat, *stepped_dims)]
    arrows = (f"{dim_name(array, dim)} {arrow}" for dim, arrow in zip(flat, "↓→", strict=True) if dim is not None)
    texts = ["  ".join(arrows)]
    texts += [f"{_range(subject, dim)} of {array.shape[dim]} (, .)" for dim in stepped_dims]
    texts += (
        [", ".join(f"{dim_name(array, dim)} 0…{array.shape[dim] - 1}" for dim in rest) + " unsharded"] if rest else []
    )
    return ["   ".join(texts)] if array.shape else []


def cursor_line(subject: Subject, width: int, height: int) -> Content:
    """Returns index ranges, bytes and devices of the shard under the cursor, or of all shards of a folded cell."""
    array = subject.array
    down, across = _windows(subject, width, height)
    folds = {subject.rows: down.fold, subject.columns: across.fold}
    ranges = [_range(subject, dim, folds.get(dim, 1)) for dim in range(len(array.shape)) if subject.counts[dim] > 1]
    size = formatting.size(bytes_per_device(array, subject.mesh))
    if down.fold * across.fold > 1:
        where = f"{down.fold * across.fold} shards, {size} each: z unfolds"
    else:
        devices = subject.holders.get(subject.cursor, [])
        several = f", {len(devices)} copies" if len(devices) > 1 else ""
        where = f"{size} on {label(subject.platform, devices, max(width // 2, 12), subject.mesh)}{several}"
    return cut(Content(f"{', '.join(ranges) or 'unsharded'} · {where}"), width)
