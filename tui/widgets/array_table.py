"""The table of arrays: flat, or grouped by module."""

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.binding import BindingType
from textual.widgets import DataTable

from ...engine.analysis.layout import bytes_per_device, notation, replicas, shard_of, wasted_bytes
from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo
from ..bindings import identified
from ..state.array_rows import Row, flat_rows, tree_rows
from ..state.run_state import RunState
from .lines import set_titles
from .table import Cells, Table, matches, right

SORTED_BY = "redundant"
COLUMNS = ("per device", "copies", SORTED_BY, "kind", "dims, mesh axes as subscript", "shape", "dtype")


class ArrayTable(Table):
    """A row for each array of a step. `●` marks those whose layout changed in the last switch."""

    BINDINGS: ClassVar[list[BindingType]] = identified("arrays", [("g", "group", "Group")])

    def __init__(self) -> None:
        super().__init__(sorted_by=SORTED_BY)
        self.state = RunState()
        self.is_grouped = False
        self.status = ""
        self.folded: set[str] = set()
        """Keys of the modules whose arrays are hidden."""
        self.changed: set[str] = set()
        """Names of the arrays whose layout the last switch changed."""
        self.found: dict[str, Row] = {}
        """Every row that can be shown now, by key."""

    def show_arrays(self, state: RunState) -> None:
        """Shows the arrays of the active preset."""
        self.state, self.changed = state, state.changed
        followed = [] if state.followed is None else [f"device {state.followed} holds"]
        self.found = {row.key: row for row in flat_rows(state.arrays)}  # arrays that share a name share a row
        self.show_rows(["array", *followed, *COLUMNS], {key: self.cells(row) for key, row in self.found.items()})

    def refresh_rows(self) -> None:
        super().refresh_rows()
        self.show_titles(self.status)

    def show_titles(self, status: str) -> None:
        """Shows how many arrays match the filter, and `status` in the lower border."""
        self.status = status
        shown, count = sum(key in self.all_rows for key in self.keys), len(self.all_rows)
        set_titles(
            self.rows, f"{count} arrays" if shown == count or self.is_grouped else f"{shown} of {count} arrays", status
        )

    def matching(self) -> Mapping[str, Cells]:
        """Returns the rows of the matching arrays, sorted; grouped by module, the most redundant first."""
        if not self.is_grouped or self.state.layout is None:
            return super().matching()
        patterns = self.patterns()
        arrays = [self.found[key].arrays[0] for key, cells in self.all_rows.items() if matches(cells, patterns)]
        rows = {row.key: row for row in tree_rows(arrays, self.state.layout.mesh, self.folded)}
        self.found |= rows
        return {key: self.cells(row) for key, row in rows.items()}

    @property
    def selected_row(self) -> Row | None:
        """The row under the cursor; None if the table is empty."""
        return self.found.get(self.selected or "")

    def select(self, key: str) -> None:
        self.is_grouped = False
        self.refresh_rows()
        super().select(key)

    @on(DataTable.RowSelected)
    def fold(self, event: DataTable.RowSelected) -> None:
        row = self.found.get(event.row_key.value or "")
        if row and row.is_module:
            self.folded ^= {row.key}
            self.refresh_rows()

    def action_group(self) -> None:
        self.is_grouped = not self.is_grouped
        self.show_arrays(self.state)

    def cells(self, row: Row) -> Cells:
        """Returns Rich text: a table measures it and never parses it as markup."""
        assert self.state.layout
        mesh, arrays, array = self.state.layout.mesh, row.arrays, row.arrays[0]
        cells = [Text("  " * row.depth + self.mark(row) + row.label, "bold" if row.is_module else "")]
        if self.state.followed is not None:
            cells.append(Text("" if row.is_module else held_slice(array, self.state)))
        cells += [
            right(figures.size(sum(bytes_per_device(array, mesh) for array in arrays))),
            right("" if row.is_module else str(replicas(array.compiled_spec, mesh))),
            right(figures.size(sum(wasted_bytes(array, mesh) for array in arrays))),
        ]
        if row.is_module:
            return [*cells, Text(f"{len(arrays)} array{'s' if len(arrays) > 1 else ''}", "dim"), Text(), Text(), Text()]
        return [
            *cells,
            Text(array.kind, "dim"),
            Text(notation(array)),
            Text(figures.shape(array.shape)),
            Text(array.dtype, "dim"),
        ]

    def mark(self, row: Row) -> str:
        """Returns the mark before a row's name: folded, unfolded, or changed by the last switch."""
        if row.is_module:
            return "▸ " if row.key in self.folded else "▾ "
        return "● " if row.key in self.changed else "  "


def held_slice(array: ArrayInfo, state: RunState) -> str:
    """Returns the index ranges that the followed device holds, written as a slice: `[0:4, :]`."""
    assert state.layout and state.followed is not None
    box = shard_of(state.followed, array.shape, array.compiled_spec, state.layout.mesh)
    ranges = (
        ":" if (start, stop) == (0, size) else f"{start}:{stop}"
        for start, stop, size in zip(box.start, box.stop, array.shape, strict=True)
    )
    return f"[{', '.join(ranges)}]"
