"""A grid of cells with one under a cursor: drawn in boxes, folded or scrolled where it is larger than its place."""

from collections.abc import Callable
from dataclasses import dataclass

from textual.content import Content

TINTS = ("$primary", "$success", "$warning", "$error", "$secondary")
NARROWEST = 3
"""Columns of a cell."""
FOLDED = 16
"""Columns of a cell that stands for several places: room to say which."""
TALLEST, WIDEST = 5, 26


@dataclass(frozen=True)
class Window:
    """Which part of one direction is drawn: `count` cells from `first`, each standing for `fold` places."""

    first: int
    count: int
    fold: int

    def places(self, cell: int) -> range:
        start = (self.first + cell) * self.fold
        return range(start, start + self.fold)

    def cell(self, place: int) -> int:
        """The one that a place falls on."""
        return place // self.fold - self.first


@dataclass(frozen=True)
class Cell:
    label: Callable[[int], str]
    """Its text, given the columns there are."""
    marked: bool = False


def window(places: int, room: int, folded_room: int, cursor: int, folds: bool) -> Window:
    """All places where there is room; else folded in equal parts, or the part around the cursor."""
    if places <= room:
        return Window(0, places, 1)
    if folds:
        sizes = (size for size in range(2, places + 1) if places % size == 0)
        fold = next(size for size in sizes if places // size <= folded_room)
        return Window(0, places // fold, fold)
    first = min(max(0, cursor - room // 2), places - room)
    return Window(first, room, 1)


def fitting(width: int, height: int, cell_width: int = NARROWEST) -> tuple[int, int]:
    """Rows and columns of cells that there is room for."""
    return max(1, (height - 1) // 2), max(1, (width - 1) // (cell_width + 1))


def draw_grid(cells: list[list[Cell]], cursor: tuple[int, int] | None, width: int, height: int) -> list[Content]:
    """At most `width` × `height` where `fitting` was asked. Colour repeats what the labels say."""
    rows, columns = len(cells), len(cells[0])
    cell_width = min(max(NARROWEST, (width - 1) // columns - 1), WIDEST)
    cell_height = min(max(1, (height - 1) // rows - 1), TALLEST)
    rules = [left + middle.join(["─" * cell_width] * columns) + right for left, middle, right in ("┌┬┐", "├┼┤", "└┴┘")]
    lines = [Content(rules[0])]
    for y, row in enumerate(cells):
        for inner in range(cell_height):
            parts: list[str | tuple[str, str]] = ["│"]
            for x, cell in enumerate(row):
                text = cell_text(cell, cell_width, (y, x) == cursor) if inner == (cell_height - 1) // 2 else ""
                tint = TINTS[(y * columns + x) % len(TINTS)]
                style = f"bold reverse {tint}" if (y, x) == cursor else f"on {tint} {45 if cell.marked else 25}%"
                parts += [(text.center(cell_width), style), "│"]
            lines.append(Content.assemble(*parts))
        lines.append(Content(rules[1] if y < rows - 1 else rules[2]))
    return lines


def cell_text(cell: Cell, width: int, is_cursor: bool) -> str:
    """`◆` for a marked cell, `›…‹` for the one under the cursor: both are seen without colour."""
    mark = "◆" if cell.marked else ""
    if is_cursor and width >= NARROWEST + 2:
        return f"›{mark}{cell.label(width - 2 - len(mark))}‹"
    return mark + cell.label(width - len(mark))
