"""A picture of one array's sharding: which device holds which part.

Arrays of one and two dims are drawn as `jax.debug.visualize_array_sharding` draws them. Of more dims two are laid
flat, the first ones that are split, and there is one such grid for each part of the other split dims.
"""

import itertools
from collections.abc import Sequence

from textual.content import Content

from ...engine import figures
from ...engine.layout import bytes_per_device, device_parts, notation, parts, replicas, shard_shape
from ...engine.protocol import ArrayInfo, MeshInfo
from .lines import Lines

TINTS = ("$primary", "$success", "$warning", "$error", "$secondary")
NARROWEST = 3
"""Columns of a cell, below which columns are left out."""
TALLEST, WIDEST = 5, 26

Part = tuple[int, ...]


class ShardingPane(Lines):
    def on_mount(self) -> None:
        self.border_title = "sharding"
        self.subject: tuple[ArrayInfo, MeshInfo, str] | None = None

    def show_array(self, array: ArrayInfo, mesh: MeshInfo, platform: str) -> None:
        self.subject = (array, mesh, platform)
        self.border_title = Content(array.name + notation(array))
        self.border_subtitle = Content(in_figures(array, mesh))
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.subject:
            self.show(draw_sharding(*self.subject, self.size.width, self.size.height))


def in_figures(array: ArrayInfo, mesh: MeshInfo) -> str:
    shape = " × ".join(str(size) for size in array.shape) or "scalar"
    copies = replicas(array.spec, mesh)
    each = f"{figures.size(bytes_per_device(array, mesh))} per device"
    return f"{array.dtype} {shape} · {figures.size(array.bytes)}, {each}, {copies} {'copies' if copies > 1 else 'copy'}"


def draw_sharding(array: ArrayInfo, mesh: MeshInfo, platform: str, width: int, height: int) -> list[Content]:
    """Lines of a picture at most `width` × `height`."""
    rows, columns, others = flat_dims(array, mesh)
    holders: dict[Part, list[int]] = {}
    for device, part in device_parts(array.spec, mesh).items():
        holders.setdefault(part, []).append(device)
    counts = parts(array.spec, mesh)
    slices = list(itertools.product(*(range(counts[dim]) for dim in others)))
    lines = [] if len(array.shape) <= 2 else [_legend(array, counts, rows, columns)]
    shown = max(1, min(len(slices), (height - len(lines)) // 4))
    for index, place in enumerate(slices[:shown]):
        room = (height - len(lines)) // (shown - index) - bool(others)
        if others:
            lines.append(_caption(array, mesh, others, place, len(slices) - shown if index == shown - 1 else 0))
        grid = [
            [
                holders[_part(len(array.shape), {rows: y, columns: x, **dict(zip(others, place, strict=True))})]
                for x in range(_count(counts, columns))
            ]
            for y in range(_count(counts, rows))
        ]
        lines += draw_grid(grid, platform, width, room)
    return lines[:height]


def flat_dims(array: ArrayInfo, mesh: MeshInfo) -> tuple[int | None, int | None, list[int]]:
    """Which dim runs down, which runs across, and which others are split."""
    rank = len(array.shape)
    if rank <= 2:
        return (0 if rank == 2 else None, rank - 1 if rank else None, [])
    counts = parts(array.spec, mesh)
    split = [dim for dim in range(rank) if counts[dim] > 1]
    whole = [dim for dim in reversed(range(rank)) if counts[dim] == 1]
    rows, columns = sorted([*split, *whole][:2])
    return rows, columns, [dim for dim in split if dim not in (rows, columns)]


def draw_grid(grid: Sequence[Sequence[Sequence[int]]], platform: str, width: int, height: int) -> list[Content]:
    """Cells with the devices that hold them, in boxes. What does not fit is left out and counted."""
    columns = max(1, min(len(grid[0]), (width - 1) // (NARROWEST + 1)))
    rows = max(1, min(len(grid), (height - 1) // 2))
    cell_width = min(max(NARROWEST, (width - 1) // columns - 1), WIDEST)
    cell_height = min(max(1, (height - 1) // rows - 1), TALLEST)
    rules = [left + middle.join(["─" * cell_width] * columns) + right for left, middle, right in ("┌┬┐", "├┼┤", "└┴┘")]
    lines = [Content(rules[0])]
    for y in range(rows):
        for inner in range(cell_height):
            row: list[str | tuple[str, str]] = ["│"]
            for x in range(columns):
                text = label(platform, grid[y][x], cell_width) if inner == (cell_height - 1) // 2 else ""
                tint = TINTS[(y * len(grid[0]) + x) % len(TINTS)]
                row += [(text.center(cell_width), f"on {tint} 25%"), "│"]
            lines.append(Content.assemble(*row))
        lines.append(Content(rules[1] if y < rows - 1 else rules[2]))
    hidden = len(grid) * len(grid[0]) - rows * columns
    if hidden:
        lines[-1] = Content.styled(f"… {hidden} more shards: enlarge the terminal", "$foreground 60%")
    return lines


def label(platform: str, devices: Sequence[int], width: int) -> str:
    """`CPU 0,2,4,6`, shortened where it must be: without the platform, then `0…6 (4)`, then the count."""
    devices = sorted(devices)
    numbers = ",".join(str(device) for device in devices)
    texts = (
        f"{platform.upper()} {numbers}",
        numbers,
        f"{devices[0]}…{devices[-1]} ({len(devices)})",
        f"×{len(devices)}",
    )
    return next((text for text in texts if len(text) <= width), texts[-1])


def _part(rank: int, chosen: dict[int | None, int]) -> Part:
    return tuple(chosen.get(dim, 0) for dim in range(rank))


def _count(counts: Sequence[int], dim: int | None) -> int:
    return 1 if dim is None else counts[dim]


def _name(array: ArrayInfo, dim: int) -> str:
    return array.logical_axes[dim] or f"dim {dim}"


def _legend(array: ArrayInfo, counts: Sequence[int], rows: int | None, columns: int | None) -> Content:
    """Which dims run where, and which are whole."""
    assert rows is not None and columns is not None
    whole = [
        f"{_name(array, dim)} 0…{size - 1}"
        for dim, size in enumerate(array.shape)
        if counts[dim] == 1 and dim not in (rows, columns)
    ]
    rest = f"   {', '.join(whole)} whole" if whole else ""
    return Content.styled(f"{_name(array, rows)} ↓  {_name(array, columns)} →{rest}", "$foreground 60%")


def _caption(array: ArrayInfo, mesh: MeshInfo, others: list[int], place: Part, hidden: int) -> Content:
    sizes = shard_shape(array.shape, array.spec, mesh)
    ranges = (
        f"{_name(array, dim)} {index * sizes[dim]}…{(index + 1) * sizes[dim] - 1}"
        for dim, index in zip(others, place, strict=True)
    )
    more = f"   … and {hidden} more such grids" if hidden else ""
    return Content.styled(", ".join(ranges) + more, "$foreground 60%")
