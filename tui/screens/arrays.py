"""Arrays: everything that a step holds or makes, worst waste first; how the selected one is laid out, and why."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import DataTable, Input

from ...engine.analysis.layout import bytes_per_device, notation, replicas, shard_of, wasted_bytes
from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo
from ..messages import DeviceFollowed
from ..state.array_rows import Order, Row, flat_rows, matches, tree_rows
from ..state.run_state import RunState
from ..widgets.lines import entitle
from ..widgets.reasons import Reasons
from ..widgets.rows import Rows
from ..widgets.sharding_pane import ShardingPane
from .run_screen import RunScreen

COLUMNS = ("per device", "copies", "wasted", "kind", "dims with mesh axes as subscript", "shape", "dtype")


class ArraysScreen(RunScreen):
    HELP = """\
## Arrays

Every parameter, moment, gradient, activation and batch array under the active preset, as the compiler laid it out.
`kernel[embed, mlp_model]`: dim `mlp` is split over mesh axis `model`. *Wasted*: what all devices hold beyond one copy.
`●` marks what the last switch laid out otherwise. One of the stacked blocks stands for all: `layers` is a dim.

**o** another order, **t** fold by module (**enter** folds one), **/** filter, **f** follow the device under the pane's
cursor, **tab** into the pane.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("o", "order", "Order"),
        ("t", "tree", "Modules"),
        ("slash", "filter", "Filter"),
        ("f", "follow", "Follow"),
        Binding("escape", "no_filter", "No filter", show=False),
    ]
    asks_compiler = True

    def body(self) -> Iterable[Widget]:
        yield Input(placeholder="filter: words of a name, kind, dtype or mesh axis", compact=True)
        self.table = Rows(cursor_type="row", zebra_stripes=True)
        yield self.table
        yield Horizontal(ShardingPane(), Reasons(), id="detail")

    def on_mount(self) -> None:
        self.order = Order.WASTE
        self.is_tree = False
        self.folded: set[str] = set()
        self.rows: dict[str, Row] = {}
        self.shown: tuple[object, ...] = ()
        self.query_one(Input).display = False

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        shown = (state.layout, state.inspection, state.previous, state.followed)
        if not self.shown or any(a is not b for a, b in zip(shown, self.shown, strict=True)):
            self.shown = shown
            self.fill()

    def fill(self) -> None:
        """The rows, with the cursor on the array that it was on; on the first row it stays there."""
        layout = self.state.layout
        if layout is None:
            return
        table, query = self.table, self.query_one(Input).value
        key = list(self.rows)[table.cursor_row] if 0 < table.cursor_row < len(self.rows) else None
        found = [array for array in self.state.arrays if matches(array, query)]
        rows = (
            tree_rows(found, layout.mesh, self.order, self.folded)
            if self.is_tree
            else flat_rows(found, layout.mesh, self.order)
        )
        self.rows = {row.key: row for row in rows}
        table.clear(columns=True)
        followed = self.state.followed
        table.add_columns("array", *([] if followed is None else [f"device {followed} holds"]), *COLUMNS)
        changed = self.state.changed
        for row in self.rows.values():  # two arrays of one name take one row
            table.add_row(*_cells(row, self.state, _mark(row, self.folded, changed)), key=row.key)
        entitle(table, f"{len(found)} of {len(self.state.arrays)} arrays, {self.order}", _missing(self.state))
        if key in self.rows:
            table.move_cursor(row=table.get_row_index(key))
        self.show_array()

    @on(DataTable.RowHighlighted)
    def show_array(self) -> None:
        layout, array = self.state.layout, self.selected
        if layout and array:
            ready = self.state.ready
            platform = ready.devices[0].platform if ready else ""
            self.query_one(ShardingPane).show_array(array, layout.mesh, platform, self.state.followed)
            self.query_one(Reasons).show_array(array, layout.mesh)

    @property
    def selected(self) -> ArrayInfo | None:
        """The array under the cursor, the first one of a module."""
        index = self.table.cursor_row
        row = list(self.rows.values())[index] if 0 <= index < len(self.rows) else None
        return row.arrays[0] if row else None

    def select(self, name: str) -> None:
        """Puts the cursor on an array, out of any filter and fold."""
        self.is_tree, self.query_one(Input).value = False, ""
        self.fill()
        if name in self.rows:
            self.table.move_cursor(row=self.table.get_row_index(name))

    @on(DataTable.RowSelected)
    def fold(self, event: DataTable.RowSelected) -> None:
        row = self.rows.get(event.row_key.value or "")
        if row and row.is_module:
            self.folded ^= {row.key}
            self.fill()

    @on(Input.Changed)
    def narrow(self) -> None:
        self.fill()

    @on(Input.Submitted)
    def leave_filter(self) -> None:
        self.table.focus()

    def action_order(self) -> None:
        orders = list(Order)
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        self.fill()

    def action_tree(self) -> None:
        self.is_tree = not self.is_tree
        self.fill()

    def action_filter(self) -> None:
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_no_filter(self) -> None:
        field = self.query_one(Input)
        field.value, field.display = "", False
        self.table.focus()

    def action_follow(self) -> None:
        subject = self.query_one(ShardingPane).subject
        devices = subject.holders.get(subject.cursor) if subject else None
        if devices:
            first = min(devices)
            self.post_message(DeviceFollowed(None if self.state.followed == first else first))


def _mark(row: Row, folded: set[str], changed: set[str]) -> str:
    if row.is_module:
        return "▸ " if row.key in folded else "▾ "
    return "● " if row.key in changed else "  "


def _cells(row: Row, state: RunState, mark: str) -> list[Text]:
    """Rich text, which a table measures and never reads as markup."""
    assert state.layout
    mesh, arrays = state.layout.mesh, row.arrays
    array = arrays[0]
    cells = [Text("  " * row.depth + mark + row.label, "bold" if row.is_module else "")]
    if state.followed is not None:
        cells.append(Text("" if row.is_module else _held(array, state)))
    cells += [
        _right(figures.size(sum(bytes_per_device(array, mesh) for array in arrays))),
        _right("" if row.is_module else str(replicas(array.compiled_spec, mesh))),
        _right(figures.size(sum(wasted_bytes(array, mesh) for array in arrays))),
    ]
    if row.is_module:
        count = Text(f"{len(arrays)} array{'s' if len(arrays) > 1 else ''}", "dim")
        return [*cells, count, Text(), Text(), Text()]
    return [
        *cells,
        Text(array.kind, "dim"),
        Text(notation(array)),
        Text(figures.shape(array.shape)),
        Text(array.dtype, "dim"),
    ]


def _held(array: ArrayInfo, state: RunState) -> str:
    """The index ranges that the followed device holds, as a slice is written."""
    assert state.layout and state.followed is not None
    box = shard_of(state.followed, array.shape, array.compiled_spec, state.layout.mesh)
    ranges = (
        ":" if (start, stop) == (0, size) else f"{start}:{stop}"
        for start, stop, size in zip(box.start, box.stop, array.shape, strict=True)
    )
    return f"[{', '.join(ranges)}]"


def _missing(state: RunState) -> str:
    """What is known of gradients and activations."""
    if state.inspection:
        return f"no gradients and activations: {state.inspection.problem}" if state.inspection.problem else ""
    return "asking the compiler for gradients and activations …" if state.is_heard else ""


def _right(text: str) -> Text:
    return Text(text, justify="right")
