"""A grid of boxes with a cursor. A grid that is larger than its panel is folded or scrolled."""

from collections.abc import Callable
from dataclasses import dataclass

from textual.content import Content

TINTS = (
    "$primary",
    "$success",
    "$warning",
    "$error",
    "$secondary-lighten-3",
    "$primary-lighten-3",
    "$success-darken-3",
    "$error-darken-3",
)
"""Eight, so that no two of eight devices share one by accident."""
MIN_CELL_WIDTH = 3
"""Least terminal columns of a cell."""
FOLDED_CELL_WIDTH = 16
"""Terminal columns of a cell that shows several positions: enough for a label that names them."""
RULE = "$foreground 30%"
MAX_CELL_HEIGHT = 5
"""Most lines of a cell: taller ones would say no more."""


@dataclass(frozen=True)
class Window:
    """The part of one direction that is drawn: `count` cells from cell `first`, each showing `fold` positions."""

    first: int
    count: int
    fold: int

    def positions(self, cell: int) -> range:
        start = (self.first + cell) * self.fold
        return range(start, start + self.fold)

    def cell(self, position: int) -> int:
        return position // self.fold - self.first


@dataclass(frozen=True)
class Cell:
    """One box of the grid."""

    label: Callable[[int], str]
    """Returns the cell's text for a number of terminal columns."""
    marked: bool = False
    """Whether the cell has a `◆`: it belongs to the followed device."""
    tint: int | None = None
    """Index of its colour; None for one of its own."""
    details: tuple[str, ...] = ()
    """Further lines, where there is room."""


def window(positions: int, room: int, folded_room: int, cursor: int, folds: bool) -> Window:
    """Returns a window of all positions if they fit into `room` cells.

    Otherwise `folds` decides: either cells of equal numbers of positions, at most `folded_room` of them, or the part
    around the cursor.
    """
    if positions <= room:
        return Window(0, positions, 1)
    if folds:
        sizes = (size for size in range(2, positions + 1) if positions % size == 0)
        fold = next(size for size in sizes if positions // size <= folded_room)
        return Window(0, positions // fold, fold)
    first = min(max(0, cursor - room // 2), positions - room)
    return Window(first, room, 1)


def grid_capacity(width: int, height: int, cell_width: int = MIN_CELL_WIDTH) -> tuple[int, int]:
    return max(1, (height - 1) // 2), max(1, (width - 1) // (cell_width + 1))


def draw_grid(cells: list[list[Cell]], cursor: tuple[int, int] | None, width: int, height: int) -> list[Content]:
    """Returns the lines of a grid: at most `width` × `height` if it has no more cells than `grid_capacity` says.

    Colour only repeats what the labels say.
    """
    rows, columns = len(cells), len(cells[0])
    cell_width = max(MIN_CELL_WIDTH, (width - 1) // columns - 1)
    cell_height = min(MAX_CELL_HEIGHT, max(1, (height - 1) // rows - 1))
    rules = [left + middle.join(["─" * cell_width] * columns) + right for left, middle, right in ("┌┬┐", "├┼┤", "└┴┘")]
    rules = [Content.styled(rule, RULE) for rule in rules]
    lines = [rules[0]]
    for y, row in enumerate(cells):
        for inner in range(cell_height):
            parts: list[str | tuple[str, str]] = [("│", RULE)]
            for x, cell in enumerate(row):
                text = _cell_line(cell, inner, cell_width, cell_height, (y, x) == cursor)
                tint = TINTS[(y * columns + x if cell.tint is None else cell.tint) % len(TINTS)]
                style = f"bold reverse {tint}" if (y, x) == cursor else f"on {tint} {45 if cell.marked else 25}%"
                parts += [(text.center(cell_width), style), ("│", RULE)]
            lines.append(Content.assemble(*parts))
        lines.append(rules[1] if y < len(cells) - 1 else rules[2])
    return lines


def _cell_line(cell: Cell, line: int, width: int, height: int, is_cursor: bool) -> str:
    """Returns the text of a cell's line: the label, the details that fit below it, or nothing around them."""
    details = [detail for detail in cell.details if len(detail) <= width][: height - 1]
    at = line - (height - 1 - len(details)) // 2
    if at == 0:
        return cell_text(cell, width, is_cursor)
    return details[at - 1] if 0 < at <= len(details) else ""


def cell_text(cell: Cell, width: int, is_cursor: bool) -> str:
    """Returns a cell's text, with `◆` if it is marked and in `›…‹` under the cursor: both are seen without colour."""
    mark = "◆" if cell.marked else ""
    if is_cursor and width >= MIN_CELL_WIDTH + 2:
        return f"›{mark}{cell.label(width - 2 - len(mark))}‹"
    return mark + cell.label(width - len(mark))
