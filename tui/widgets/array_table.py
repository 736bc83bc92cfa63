"""The table of arrays: their layout, grouped by module if the user wishes, or the numbers in them."""

from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device, shards_differ
from ..bindings import identified
from ..state.number_tables import numbers_columns
from ..state.numbers import rows_of
from ..state.run_state import RunState
from ..state.tables import REDUNDANT, ArrayRow, array_columns, flat_rows, slice_column, tree_rows
from .lines import set_titles
from .table import Cells, Table, cells_of, matches


class ArrayTable(Table):
    """A row for each array of a step. `●` marks those whose layout changed in the last switch."""

    BINDINGS: ClassVar[list[BindingType]] = identified("arrays", [("g", "group", "Group")])

    def __init__(self) -> None:
        super().__init__(sorted_by=REDUNDANT, has_full_text=False)
        self.state = RunState()
        self.is_grouped = self.has_numbers = False
        self.other_order: tuple[str | None, bool] = (None, False)
        """The order of the rows in the mode that is not shown: the column, and whether it is reversed."""
        self.status = ""
        self.folded: set[str] = set()
        """Keys of the modules whose arrays are hidden."""
        self.changed: set[str] = set()
        """Names of the arrays whose layout the last switch changed."""
        self.found: dict[str, ArrayRow] = {}
        """Every row that can be shown now, by key."""

    def show_arrays(self, state: RunState) -> None:
        self.state = state
        arrays, mesh = state.arrays, state.layout.mesh if state.layout else None
        if mesh:  # the largest first where the order leaves it open
            arrays = sorted(arrays, key=lambda array: -bytes_per_device(array, mesh))
        self.found = {row.key: row for row in flat_rows(arrays)}  # arrays that share a name share a row
        if self.has_numbers:
            rows = {row.array.name: row for row in rows_of(state.numbers)}
            self.show_columns(numbers_columns(), rows)
        elif mesh:
            self.changed = changed_arrays(state)
            columns = array_columns(mesh, self.mark)
            columns[1:1] = [] if state.followed is None else [slice_column(state.followed, mesh)]
            self.show_columns(columns, self.found)

    def show_numbers(self, is_shown: bool) -> None:
        """Makes the next rows those of the numbers in the arrays, or of their layout, in the order chosen there."""
        if is_shown is not self.has_numbers:
            self.has_numbers = is_shown
            order = (self.sorted_by, self.is_reversed)
            (self.sorted_by, self.is_reversed), self.other_order = self.other_order, order

    def refresh_rows(self) -> None:
        super().refresh_rows()
        self.show_titles(self.status)

    def show_titles(self, status: str) -> None:
        """Shows how many arrays match the filter, and `status` in the lower border."""
        self.status = status
        shown, count = sum(key in self.all_rows for key in self.rows.keys), len(self.all_rows)
        every = formatting.counted(count, "array")
        set_titles(self.rows, every if shown == count or self.is_tree else f"{shown} of {every}", status)

    def matching(self) -> Mapping[str, Cells]:
        """Returns the rows of the matching arrays, sorted; grouped by module, the most redundant first."""
        if not self.is_tree or self.state.layout is None:
            return super().matching()
        patterns = self.patterns()
        arrays = [self.found[key].arrays[0] for key, cells in self.all_rows.items() if matches(cells, patterns)]
        rows = {row.key: row for row in tree_rows(arrays, self.state.layout.mesh, self.folded)}
        self.found |= rows
        return {key: cells_of(self.columns, row) for key, row in rows.items()}

    @property
    def is_tree(self) -> bool:
        """Whether the rows are grouped by module, which those of numbers never are."""
        return self.is_grouped and not self.has_numbers

    @property
    def selected_row(self) -> ArrayRow | None:
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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return super().check_action(action, parameters) if action != "group" else not self.has_numbers

    def action_group(self) -> None:
        self.is_grouped = not self.is_grouped
        self.show_arrays(self.state)

    def mark(self, row: ArrayRow) -> str:
        if row.is_module:
            return "▸ " if row.key in self.folded else "▾ "
        return "● " if row.key in self.changed else "  "


def changed_arrays(state: RunState) -> set[str]:
    """Returns the names of the arrays whose layout the last switch changed."""
    before = state.compiled.get(state.previous or "")
    if before is None or state.layout is None:
        return set()
    old = {array.name: array for array in state.arrays_of(before.preset)}
    return {
        array.name
        for array in state.arrays
        if array.name in old and shards_differ(old[array.name], array, before.mesh, state.layout.mesh)
    }
