"""The rows of the Arrays table, flat or grouped by module. Pure functions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...engine.analysis.layout import wasted_bytes
from ...engine.wire.descriptions import ArrayInfo, MeshInfo


@dataclass(frozen=True)
class Row:
    """An array, or a module with all arrays in it."""

    key: str
    """Identifies the row: the array's name, or the module's prefix."""
    label: str
    """What the row shows: a name, or the last part of one."""
    depth: int
    """Levels of indentation."""
    arrays: tuple[ArrayInfo, ...]
    """The array, or all arrays in the module."""
    is_module: bool = False


def flat_rows(arrays: Iterable[ArrayInfo]) -> list[Row]:
    """Returns a row for each array, in program order."""
    return [Row(array.name, array.name, 0, (array,)) for array in arrays]


def tree_rows(arrays: Iterable[ArrayInfo], mesh: MeshInfo, folded: set[str]) -> list[Row]:
    """Returns rows for kinds, then for modules by the dots in their names, at each level the most redundant first.

    `folded` holds the keys of the rows whose children are hidden.
    """
    kinds = _grouped(arrays, lambda array: array.kind)
    tops = [Row(f"{kind}:", f"{kind}s", 0, found, True) for kind, found in kinds.items()]
    return [row for top in _ordered(tops, mesh) for row in _subtree(top, mesh, folded, 0)]


def _subtree(row: Row, mesh: MeshInfo, folded: set[str], skip: int) -> list[Row]:
    """Returns `row` and the rows below it. The rows above show the first `skip` parts of a name."""
    if not row.is_module or row.key in folded:
        return [row]
    deeper = [array for array in row.arrays if array.name.count(".") > skip]
    modules = _grouped(deeper, lambda array: array.name.split(".")[skip])
    below = [
        Row(array.name, array.name.split(".")[skip], row.depth + 1, (array,))
        for array in row.arrays
        if array.name.count(".") == skip
    ]
    below += [Row(f"{row.key}{name}.", name, row.depth + 1, found, True) for name, found in modules.items()]
    children = (_subtree(child, mesh, folded, skip + 1) for child in _ordered(below, mesh))
    return [row, *(line for lines in children for line in lines)]


def _grouped(arrays: Iterable[ArrayInfo], key: Callable[[ArrayInfo], str]) -> dict[str, tuple[ArrayInfo, ...]]:
    groups: dict[str, tuple[ArrayInfo, ...]] = {}
    for array in arrays:
        groups[key(array)] = (*groups.get(key(array), ()), array)
    return groups


def _ordered(rows: Iterable[Row], mesh: MeshInfo) -> list[Row]:
    return sorted(rows, key=lambda row: -sum(wasted_bytes(array, mesh) for array in row.arrays))
