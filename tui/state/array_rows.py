"""The rows of the Arrays table: filtered, in order, flat or folded by module. Pure functions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...engine.analysis.layout import bytes_per_device, notation, wasted_bytes
from ...engine.wire.descriptions import ArrayInfo, MeshInfo


class Order(StrEnum):
    WASTE = "most wasted first"
    SIZE = "most on a device first"
    NAME = "by name"
    STEP = "as the step has them"


@dataclass(frozen=True)
class Row:
    """An array, or a module with all arrays in it."""

    key: str
    label: str
    depth: int
    arrays: tuple[ArrayInfo, ...]
    is_module: bool = False


def flat_rows(arrays: Iterable[ArrayInfo], mesh: MeshInfo, order: Order) -> list[Row]:
    rows = [Row(array.name, array.name, 0, (array,)) for array in arrays]
    return _ordered(rows, mesh, order)


def tree_rows(arrays: Iterable[ArrayInfo], mesh: MeshInfo, order: Order, folded: set[str]) -> list[Row]:
    """Kinds, then modules by the dots of their names; in each the rows are in order. What is folded hides its rows."""
    kinds = _grouped(arrays, lambda array: array.kind)
    tops = [Row(f"{kind}:", f"{kind}s", 0, found, True) for kind, found in kinds.items()]
    return [row for top in _ordered(tops, mesh, order) for row in _subtree(top, mesh, order, folded, 0)]


def matches(array: ArrayInfo, query: str) -> bool:
    """Every word stands somewhere in its name, kind, dtype or dims."""
    text = f"{array.name}{notation(array)} {array.kind} {array.dtype}".lower()
    return all(word in text for word in query.lower().split())


def _subtree(row: Row, mesh: MeshInfo, order: Order, folded: set[str], skip: int) -> list[Row]:
    """`row` and what stands under it; the first `skip` parts of a name are told by the rows above."""
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
    children = (_subtree(child, mesh, order, folded, skip + 1) for child in _ordered(below, mesh, order))
    return [row, *(line for lines in children for line in lines)]


def _grouped(arrays: Iterable[ArrayInfo], key: Callable[[ArrayInfo], str]) -> dict[str, tuple[ArrayInfo, ...]]:
    groups: dict[str, tuple[ArrayInfo, ...]] = {}
    for array in arrays:
        groups[key(array)] = (*groups.get(key(array), ()), array)
    return groups


def _ordered(rows: Sequence[Row], mesh: MeshInfo, order: Order) -> list[Row]:
    match order:
        case Order.WASTE:
            return sorted(rows, key=lambda row: -sum(wasted_bytes(array, mesh) for array in row.arrays))
        case Order.SIZE:
            return sorted(rows, key=lambda row: -sum(bytes_per_device(array, mesh) for array in row.arrays))
        case Order.NAME:
            return sorted(rows, key=lambda row: row.label)
        case Order.STEP:
            return list(rows)
