"""Arrays: every array of the state and the batch, and how the selected one is laid out and why."""

from collections.abc import Iterable
from typing import ClassVar, cast

from rich.text import Text
from textual import on
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine import figures
from ...engine.layout import bytes_per_device, notation, replicas
from ...engine.protocol import ArrayInfo, PresetCompiled
from ..run_state import RunState
from ..widgets.reasons import Reasons
from ..widgets.sharding_pane import ShardingPane
from .run_screen import RunScreen

COLUMNS = ("array", "per device", "copies", "dims, with their mesh axes as subscript", "shape", "bytes", "kind")


class ArraysScreen(RunScreen):
    HELP = """\
## Arrays

Every parameter, moment and batch array under the active preset. `kernel[embed, mlp_model]` says that dim `mlp` is
split over mesh axis `model`. The pane draws which devices hold which part; beside it stands why.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"

    def body(self) -> Iterable[Widget]:
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield Horizontal(ShardingPane(), Reasons(), id="detail")

    def on_mount(self) -> None:
        self.layout_shown: PresetCompiled | None = None
        self.platform = ""
        self.table.add_columns(*COLUMNS)

    @property
    def table(self) -> DataTable[Text]:
        return cast(DataTable[Text], self.query_one(DataTable))

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if state.layout is None or state.layout is self.layout_shown:
            return
        self.layout_shown = state.layout
        self.platform = state.ready.devices[0].platform if state.ready else ""
        row = self.table.cursor_row
        self.table.clear()
        for array in state.layout.arrays:
            self.table.add_row(*_cells(array, state.layout), key=array.name)
        self.table.move_cursor(row=row)

    @on(DataTable.RowHighlighted)
    def show_array(self, event: DataTable.RowHighlighted) -> None:
        layout = self.layout_shown
        array = next((array for array in layout.arrays if array.name == event.row_key.value), None) if layout else None
        if layout and array:
            self.query_one(ShardingPane).show_array(array, layout.mesh, self.platform)
            self.query_one(Reasons).show_array(array)


def _cells(array: ArrayInfo, layout: PresetCompiled) -> list[Text]:
    """Rich text, which a table measures and never reads as markup."""
    each = bytes_per_device(array, layout.mesh)
    return [
        Text(array.name),
        Text(figures.size(each), justify="right"),
        Text(f"{replicas(array.spec, layout.mesh)}", justify="right"),
        Text(notation(array)),
        Text(" × ".join(str(size) for size in array.shape) or "–"),
        Text(figures.size(array.bytes), justify="right"),
        Text(array.kind, "dim"),
    ]
