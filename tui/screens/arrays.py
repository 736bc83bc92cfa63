"""Arrays: every array of a step, most redundant bytes first, and the sharding of the selected one with its reasons."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.hlo.layout import is_same_layout, notation, replicas, used_axes, wasted_bytes
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..bindings import identified, key_of
from ..messages import OriginRequested, ViewShown
from ..state.origin_pages import ValuePage
from ..state.run_state import RunState
from ..widgets.array_table import ArrayTable
from ..widgets.lines import StyledText, Texts
from ..widgets.numbers_pane import NumbersPane
from ..widgets.sharding_pane import ShardingPane
from ..widgets.table import Table
from .run_screen import RunScreen


class ArraysScreen(RunScreen):
    """A table of all arrays; below it the sharding of the selected one and the reason for each dim."""

    HELP = """\
## Arrays

All parameters, moments, gradients, activations and batch arrays under the active preset, as compiled.
`kernel[embed, mlp@model]`: dim `mlp` is split over mesh axis `model`. *Redundant*: bytes of extra copies.
`●` marks arrays whose layout changed in the last switch. Stacked blocks are one array, with `layers` as a dim.

**Enter** opens the origin of an array: the rule, the constraint or the value that each of its mesh axes comes from.
**g** groups by module (**enter** folds one), **f** follows the device under the pane's cursor, **tab** moves into the
pane.

**n** shows the numbers in the arrays in place of their layout, as measured last: root mean square and its course, the
update ÷ parameter, what is not finite. The pane compares the layers of an array with their median: orange is above it,
blue below. **M** measures now, `--numbers-every N` every N steps.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "arrays",
        [
            ("f", "follow", "Follow"),
            ("n", "numbers", "Numbers"),
            ("M", "app.measure_numbers", "Measure"),
            Binding("slash", "filter", "Filter", show=False),
            Binding("escape", "no_filter", "No filter", show=False),
        ],
    )
    needs_inspection = True

    def __init__(self) -> None:
        super().__init__()
        self.shown: tuple[object, ...] = ()
        self.is_requested = False
        """Whether a measurement was requested when the state was shown last."""

    def body(self) -> Iterable[Widget]:
        self.table = ArrayTable()
        yield self.table
        yield Horizontal(ShardingPane(), Reasons(), NumbersPane(), id="detail")

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if state.numbers.is_requested and not self.is_requested:
            self.show_numbers(True)
        self.is_requested = state.numbers.is_requested
        numbers = state.numbers.newest if self.table.has_numbers else None
        shown = (state.layout, state.inspection, state.previous, state.followed, numbers)
        if shown != self.shown:
            self.shown = shown
            self.table.show_arrays(state)
            self.show_array()
        self.table.show_titles(_numbers_status(state) if self.table.has_numbers else _inspection_status(state))

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_array(self) -> None:
        layout, row = self.state.layout, self.table.selected_row
        if layout and row:
            array = row.arrays[0]
            ready = self.state.ready
            platform = ready.devices[0].platform if ready else ""
            self.query_one(ShardingPane).show_array(array, layout.mesh, platform, self.state.followed)
            self.query_one(Reasons).show_texts(reasons_of(array, layout.mesh))
        if self.table.has_numbers:
            key = key_of(self, "app.measure_numbers")
            self.query_one(NumbersPane).show_numbers(self.state.numbers.newest, self.table.selected or "", key)

    @on(DataTable.RowSelected)
    def show_origin(self, event: DataTable.RowSelected) -> None:
        """Opens the origin of an array; on a module row the table folds that."""
        row = self.table.found.get(event.row_key.value or "")
        if row and not row.is_module:
            self.post_message(OriginRequested(ValuePage(row.arrays[0].name)))

    def select(self, name: str) -> None:
        self.table.select(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "follow" or not self.has_class("-numbers")

    def action_filter(self) -> None:
        self.table.action_filter()

    def action_no_filter(self) -> None:
        self.table.action_no_filter()

    def action_numbers(self) -> None:
        self.show_numbers(not self.table.has_numbers)
        self.post_message(ViewShown())

    def show_numbers(self, is_shown: bool) -> None:
        """Shows the numbers in the arrays, or their layout."""
        self.shown = ()
        self.set_class(is_shown, "-numbers")
        self.table.show_numbers(is_shown)
        self.refresh_bindings()

    def action_follow(self) -> None:
        subject = self.query_one(ShardingPane).subject
        devices = subject.holders.get(subject.cursor) if subject else None
        if devices:
            self.follow_device(min(devices))


def _inspection_status(state: RunState) -> str:
    """Says why gradients and activations are missing; empty once they are known."""
    if state.inspection:
        return f"gradients and activations unknown: {state.inspection.problem}" if state.inspection.problem else ""
    return "compiling for gradients and activations …" if state.is_live else ""


def _numbers_status(state: RunState) -> str:
    """Returns when the numbers were measured, that they are being measured, or why they were not."""
    numbers = state.numbers
    if numbers.is_requested:
        return "measuring …"
    if numbers.problem:
        return f"not measured: {numbers.problem}"
    newest = numbers.newest
    return f"step {newest.step:,}, measured in {formatting.seconds(newest.seconds)}" if newest else "none measured yet"


class Reasons(Texts):
    """A paragraph for each dim, whether the compiler kept the intended layout, and what copies cost."""

    INDENT = "  "

    def on_mount(self) -> None:
        self.border_title, self.border_subtitle = "why", "enter: origin"


def reasons_of(array: ArrayInfo, mesh: MeshInfo) -> list[StyledText]:
    if not array.shape:
        return [("scalar: replicated on every device", "$text-muted")]
    texts = [("laid out by its own program", "$text-muted")]
    if array.reasons:
        reasons = zip(array.reasons, array.spec, strict=True)
        texts = [(reason, "" if axes else "$text-muted") for reason, axes in reasons]
        texts.append(_compared(array, mesh))
    if array.type:
        texts.insert(0, (array.type, "bold"))
    copies = replicas(array.compiled_spec, mesh)
    if copies > 1:
        unused = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in used_axes(array)]
        text = f"replicated {copies}× over {' × '.join(unused)}: {formatting.size(wasted_bytes(array, mesh))} redundant"
        texts.append((text, "$warning"))
    return texts


def _compared(array: ArrayInfo, mesh: MeshInfo) -> StyledText:
    if is_same_layout(array.spec, array.compiled_spec, mesh):
        return "compiled as intended", "$success"
    return f"compiled differently: {notation(array)}", "$warning"
