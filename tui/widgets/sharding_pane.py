"""A picture of one array's sharding: which device holds which part, for any rank and any number of devices.

Arrays of one and two dims are drawn as `jax.debug.visualize_array_sharding` draws them. Of more dims two are laid
flat, at first those that are split, and the others are stepped through.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from textual.binding import Binding, BindingType
from textual.content import Content

from ...engine.analysis.layout import (
    bytes_per_device,
    coordinates,
    device_parts,
    dim_name,
    notation,
    parts,
    replicas,
    shard_shape,
)
from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..messages import ShardChosen
from .grid import FOLDED, Cell, Window, draw_grid, fitting, window
from .lines import Lines, entitle
from .whole import cut

SHORTEST_WITH_FOOT = 5

Part = tuple[int, ...]
"""For each dim the number of a part."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn, and how the user turned it."""

    array: ArrayInfo
    mesh: MeshInfo
    platform: str
    rows: int | None
    columns: int | None
    cursor: Part
    folds: bool = True
    followed: int | None = None
    """A device whose shard is marked."""

    @property
    def counts(self) -> Part:
        return parts(self.array.compiled_spec, self.mesh)

    @property
    def holders(self) -> dict[Part, list[int]]:
        found: dict[Part, list[int]] = {}
        for device, part in device_parts(self.array.compiled_spec, self.mesh).items():
            found.setdefault(part, []).append(device)
        return found


class ShardingPane(Lines, can_focus=True):
    HELP = """\
## Sharding

Each box is a shard with the devices that hold a copy of it. **Arrows** move the cursor, whose shard is told below:
index ranges, bytes and devices. **r** and **c** lay another dim along the rows or columns, **,** and **.** step through
the dims that are not laid flat, **z** unfolds a grid that is larger than the pane, **f** follows the shard's first
device through every array (`◆`).
"""
    BINDING_GROUP_TITLE = "Sharding"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1, 0)", "Up", show=False),
        Binding("down", "move(1, 0)", "Down", show=False),
        Binding("left", "move(0, -1)", "Left", show=False),
        Binding("right", "move(0, 1)", "Right", show=False),
        ("r", "turn('rows')", "Rows"),
        ("c", "turn('columns')", "Columns"),
        Binding("comma", "slice(-1)", "Slice before", show=False),
        ("full_stop", "slice(1)", "Slice"),
        ("z", "fold", "Unfold"),
    ]

    def on_mount(self) -> None:
        self.border_title = "sharding"
        self.subject: Subject | None = None

    def show_array(self, array: ArrayInfo, mesh: MeshInfo, platform: str, followed: int | None) -> None:
        """Keeps how the user turned it while the array stays the same one."""
        old = self.subject
        if old and old.array.name == array.name and len(old.array.shape) == len(array.shape):
            counts = parts(array.compiled_spec, mesh)
            cursor = tuple(min(at, count - 1) for at, count in zip(old.cursor, counts, strict=True))
            changed = {"array": array, "mesh": mesh, "platform": platform, "cursor": cursor, "followed": followed}
            self.turn_to(msgspec.structs.replace(old, **changed))
        else:
            self.turn_to(subject(array, mesh, platform, followed))

    def turn_to(self, turned: Subject) -> None:
        self.subject = turned
        self.show_title(turned)
        self.draw()
        self.post_message(ShardChosen(sorted(turned.holders.get(turned.cursor, []))))

    def show_title(self, subject: Subject) -> None:
        entitle(self, subject.array.name + notation(subject.array), in_figures(subject.array, subject.mesh))

    def on_resize(self) -> None:
        self.draw()

    def on_focus(self) -> None:
        self.draw()

    def on_blur(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.subject:
            width, height = self.size.width, self.size.height
            foot = self.foot(self.subject, width, height) if height > SHORTEST_WITH_FOOT else []
            self.show(draw_sharding(self.subject, width, height - len(foot), self.has_focus) + foot)

    def foot(self, subject: Subject, width: int, height: int) -> list[Content]:
        """Of the shard under the cursor: index ranges, bytes and devices."""
        return [cursor_line(subject, width, height - 1)]

    def action_move(self, down: int, right: int) -> None:
        if self.subject:
            self.turn_to(moved(self.subject, down, right, self.size.width, self.size.height - 1))

    def action_turn(self, direction: str) -> None:
        if self.subject:
            self.turn_to(turned(self.subject, direction))

    def action_slice(self, step: int) -> None:
        if self.subject:
            self.turn_to(next_slice(self.subject, step))

    def action_fold(self) -> None:
        if self.subject:
            self.turn_to(msgspec.structs.replace(self.subject, folds=not self.subject.folds))


def subject(array: ArrayInfo, mesh: MeshInfo, platform: str, followed: int | None = None) -> Subject:
    """As it is first shown: dims that are split are laid flat, the last ones where none is."""
    rank = len(array.shape)
    counts = parts(array.compiled_spec, mesh)
    if rank <= 2:
        rows, columns = (0 if rank == 2 else None, rank - 1 if rank else None)
    else:
        split = [dim for dim in range(rank) if counts[dim] > 1]
        whole = [dim for dim in reversed(range(rank)) if counts[dim] == 1]
        rows, columns = sorted([*split, *whole][:2])
    at = (0,) * rank
    return Subject(array=array, mesh=mesh, platform=platform, rows=rows, columns=columns, cursor=at, followed=followed)


def turned(subject: Subject, direction: str) -> Subject:
    """With the next dim along `rows` or `columns`; where it lies along the other, the two change places."""
    if subject.rows is None or subject.columns is None:
        return subject
    mine, other = ("rows", "columns") if direction == "rows" else ("columns", "rows")
    dim = (getattr(subject, mine) + 1) % len(subject.array.shape)
    if dim == getattr(subject, other):
        return msgspec.structs.replace(subject, **{mine: dim, other: getattr(subject, mine)})
    return msgspec.structs.replace(subject, **{mine: dim})


def moved(subject: Subject, down: int, right: int, width: int, height: int) -> Subject:
    """The cursor one cell further, which is several shards where they are folded."""
    cursor = list(subject.cursor)
    windows = _windows(subject, width, height)
    for dim, step, view in zip((subject.rows, subject.columns), (down, right), windows, strict=True):
        if dim is not None and step:
            at = cursor[dim] // view.fold * view.fold + step * view.fold
            cursor[dim] = min(max(0, at), subject.counts[dim] - view.fold)
    return msgspec.structs.replace(subject, cursor=tuple(cursor))


def next_slice(subject: Subject, step: int) -> Subject:
    """The next place along the split dims that are not laid flat, the last of them fastest."""
    others = _others(subject)
    cursor = list(subject.cursor)
    for dim in reversed(others):
        cursor[dim] += step
        if 0 <= cursor[dim] < subject.counts[dim]:
            break
        cursor[dim] %= subject.counts[dim]
    return msgspec.structs.replace(subject, cursor=tuple(cursor))


def in_figures(array: ArrayInfo, mesh: MeshInfo) -> str:
    copies = replicas(array.compiled_spec, mesh)
    each = f"{figures.size(bytes_per_device(array, mesh))} per device"
    shape = figures.shape(array.shape) if array.shape else "scalar"
    return f"{array.dtype} {shape} · {figures.size(array.bytes)}, {each}, {copies} {'copies' if copies > 1 else 'copy'}"


def draw_sharding(subject: Subject, width: int, height: int, with_cursor: bool = False) -> list[Content]:
    """Lines of a picture at most `width` × `height`: which dims lie where, then the grid."""
    head = [Content.styled(text, "$foreground 60%") for text in _legend(subject)]
    down, across = _windows(subject, width, height)
    holders = subject.holders
    cells = [
        [_cell(subject, holders, down.places(y), across.places(x)) for x in range(across.count)]
        for y in range(down.count)
    ]
    cursor = (down.cell(_at(subject, subject.rows)), across.cell(_at(subject, subject.columns)))
    return [*head, *draw_grid(cells, cursor if with_cursor else None, width, height - len(head))][:height]


def label(platform: str, devices: Sequence[int], width: int, mesh: MeshInfo) -> str:
    """`CPU 0,2,4,6`, shortened where it must be: the numbers alone, `model 0 (4)`, `0…6 (4)`, then the count."""
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
    """The coordinates that these devices have in common, or the range of them."""
    known = coordinates(mesh)
    places = [known[device] for device in devices]
    shared: list[str] = []
    for axis, size in mesh.axes.items():
        indices = {place[axis] for place in places}
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
    return Cell(
        lambda width: label(subject.platform, sorted(set(devices)), width, subject.mesh), subject.followed in devices
    )


def _windows(subject: Subject, width: int, height: int) -> tuple[Window, Window]:
    """What is drawn of the dims along the rows and along the columns."""
    height -= len(_legend(subject))
    rows, columns = fitting(width, height)
    _, folded_columns = fitting(width, height, FOLDED)
    return (
        window(_count(subject, subject.rows), rows, rows, _at(subject, subject.rows), subject.folds),
        window(_count(subject, subject.columns), columns, folded_columns, _at(subject, subject.columns), subject.folds),
    )


def _others(subject: Subject) -> list[int]:
    """Split dims that are not laid flat."""
    flat = (subject.rows, subject.columns)
    return [dim for dim, count in enumerate(subject.counts) if count > 1 and dim not in flat]


def _count(subject: Subject, dim: int | None) -> int:
    return 1 if dim is None else subject.counts[dim]


def _at(subject: Subject, dim: int | None) -> int:
    return 0 if dim is None else subject.cursor[dim]


def _range(subject: Subject, dim: int, fold: int = 1) -> str:
    """`embed 0…15`: what the cursor's shard holds of a dim."""
    array = subject.array
    size = shard_shape(array.shape, array.compiled_spec, subject.mesh)[dim]
    start = subject.cursor[dim] * size
    return f"{dim_name(array, dim)} {start}…{min(start + size * fold, array.shape[dim]) - 1}"


def _legend(subject: Subject) -> list[str]:
    """Which dims run where, and where the others stand."""
    array, flat = subject.array, (subject.rows, subject.columns)
    others = _others(subject)
    rest = [dim for dim in range(len(array.shape)) if dim not in (*flat, *others)]
    arrows = (f"{dim_name(array, dim)} {arrow}" for dim, arrow in zip(flat, "↓→", strict=True) if dim is not None)
    texts = ["  ".join(arrows)]
    texts += [f"{_range(subject, dim)} of {array.shape[dim]} (, .)" for dim in others]
    texts += [", ".join(f"{dim_name(array, dim)} 0…{array.shape[dim] - 1}" for dim in rest) + " whole"] if rest else []
    return ["   ".join(texts)] if array.shape else []


def cursor_line(subject: Subject, width: int, height: int) -> Content:
    """Index ranges, bytes and devices of the shard under the cursor; of all shards of a folded cell."""
    array = subject.array
    down, across = _windows(subject, width, height)
    folds = {subject.rows: down.fold, subject.columns: across.fold}
    ranges = [_range(subject, dim, folds.get(dim, 1)) for dim in range(len(array.shape)) if subject.counts[dim] > 1]
    size = figures.size(bytes_per_device(array, subject.mesh))
    if down.fold * across.fold > 1:
        where = f"{down.fold * across.fold} shards, {size} each: z unfolds"
    else:
        devices = sorted(subject.holders.get(subject.cursor, []))
        several = f", {len(devices)} copies" if len(devices) > 1 else ""
        where = f"{size} on {label(subject.platform, devices, max(width // 2, 12), subject.mesh)}{several}"
    return cut(Content(f"{', '.join(ranges) or 'whole'} · {where}"), width)
