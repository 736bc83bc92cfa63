"""Time: where the time of a step went, as the profiler measured it: its parts, its operations, and one step in time."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable

from ...engine.base import formatting
from ...engine.wire.events import PartsMeasured, Profiled
from ...engine.wire.step_breakdown import OperationTime, StepBreakdown
from ..bindings import identified, key_of
from ..messages import RowChosen
from ..state.alternative import Alternative, alternative
from ..state.experts import wait_words
from ..state.run_state import RunState
from ..state.tables import operation_columns
from ..widgets.lines import StateLines, set_titles, wrapped
from ..widgets.step_bar import LABEL_WIDTH, PARTS, StepBar, bar, sums_of
from ..widgets.table import Table
from ..widgets.timeline import TimelineView
from .run_screen import RunScreen

HISTORY_HINT = (
    "The parts of the step were not measured yet: train with --profile-every 10 to measure them every ten minutes."
)


class TimeScreen(RunScreen):
    """The step as a bar cut into its parts, and below it a table of its operations, or one step as a timeline."""

    HELP = """\
## Time

Where the time of a step went, measured by the profiler over whole steps: **p** traces the next five. The bars are the
mean of the devices and each device, or the mean of neighbours if there are many. Each moment of a device counts once.

*products* matrix products, *fusions* and *copies* other work on the device. Of collectives: *waiting* for other
devices to begin, then *exposed*, while the device does nothing else; *hidden* time passes behind work and is no part of
the step. Between steps: *input*, the host prepares a batch, or *host*. *idle*: within a step, nothing runs.

In the table, *time* is the mean of the devices per step, *times* how often the operation ran. Wide terminals show what
it reached: *FLOP/s* of matrix products, and *bytes/s* read and written in memory, or sent by a collective after its
wait. On known chips *MFU* and *bandwidth* are these as a part of the peak, and *roofline* is the least time that the
chip needs. **o** sorts by the next column; **/** filters: `all-` leaves collectives. **enter** opens a collective in
Traffic. **t** changes to the timeline of one step, **h** to the parts in the course of the run, and back.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "time", [("t", "timeline", "Timeline"), ("h", "history", "History")]
    )

    def __init__(self) -> None:
        super().__init__()
        self.shown: tuple[Profiled, Alternative | None, str] | None = None

    def body(self) -> Iterable[Widget]:
        yield StepBar()
        self.table = Table()
        yield self.table
        self.timeline = TimelineView()
        yield self.timeline
        self.history = PartsHistory()
        yield self.history
        self.timeline.display = self.history.display = False

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        self.history.show_state(state)
        profiled = state.profiled
        if profiled is None or profiled.breakdown is None:
            self.query_one(StepBar).show_hint(self.hint)
            return
        self.needs_estimates = True  # for the preset to try
        other = alternative(state, profiled.preset)
        experts = wait_words(state, profiled.breakdown, profiled.preset)
        shown = (profiled, other, experts)
        if shown != self.shown:
            self.shown = shown
            steps = f"steps {profiled.step - profiled.steps + 1:,} to {profiled.step:,}"
            more = [(experts, "")] if experts else []
            self.query_one(StepBar).show_breakdown(profiled.breakdown, profiled.preset, steps, other, more)
            show_operations(self.table, profiled.breakdown, f"{key_of(self, 'timeline')}: timeline")
            self.timeline.show_breakdown(profiled.breakdown)

    def select(self, name: str) -> None:
        self.show_below(self.table)
        self.table.select(name)

    @property
    def breakdown(self) -> StepBreakdown | None:
        return self.shown[0].breakdown if self.shown else None

    def action_timeline(self) -> None:
        if self.breakdown:
            self.show_below(self.table if self.timeline.display else self.timeline)

    def action_history(self) -> None:
        self.show_below(self.table if self.history.display else self.history)

    def show_below(self, shown: Widget) -> None:
        for widget in (self.table, self.timeline, self.history):
            widget.display = widget is shown
        (self.table.rows if shown is self.table else shown).focus()

    @on(DataTable.RowSelected)
    def open_row(self, event: DataTable.RowSelected) -> None:
        found = self.breakdown.operations if self.breakdown else []
        self.open_collective(next((each for each in found if each.name == event.row_key.value), None))

    @on(TimelineView.Opened)
    def open_under_cursor(self, event: TimelineView.Opened) -> None:
        self.open_collective(event.operation)

    def open_collective(self, operation: OperationTime | None) -> None:
        """Opens an operation in Traffic, if it is a collective of the preset that is shown there."""
        breakdown, layout = self.breakdown, self.state.layout
        if not operation or not breakdown or not layout or not self.shown:
            return
        if operation.name not in {each.name for each in breakdown.collectives}:
            self.notify("no collective: Traffic shows only those", markup=False)
        elif self.shown[0].preset != layout.preset:
            self.notify(f"measured under {self.shown[0].preset}: Traffic shows {layout.preset}", markup=False)
        else:
            self.post_message(RowChosen("traffic", (operation.source, operation.name)))

    @property
    def hint(self) -> str:
        """How to get a breakdown."""
        profiled = self.state.profiled
        if profiled and profiled.problem:
            return f"The trace of step {profiled.step:,} could not be read: {profiled.problem}"
        if self.state.profiling:
            return "Tracing: the breakdown follows."
        if self.state.is_live and not self.state.watched:
            return f"{key_of(self, 'profile')} traces the next five steps and shows here where their time goes."
        return "No step of this run was profiled."


def show_operations(table: Table, breakdown: StepBreakdown, subtitle: str = "") -> None:
    rows = {each.name: each for each in breakdown.operations}
    table.show_columns(operation_columns(breakdown), rows)
    more = f" and {breakdown.operations_left_out} more" if breakdown.operations_left_out else ""
    set_titles(table.rows, f"{formatting.counted(len(breakdown.operations), 'operation')}{more}", subtitle)


TIME_WIDTH = 12
"""Cells for the step time to the right of a bar, such as `59 min 59 s`."""


class PartsHistory(StateLines, can_focus=True):
    """A bar cut into the parts of the step for each breakdown; means of neighbours if there are more than lines."""

    HELP = """\
## History

The parts of the step in the course of the run, with the signs of the bars above: one bar for each time that
`--profile-every` has measured them, and for each profile. On the left is the step, on the right how long it took. If
there are more than lines, a bar is the mean of neighbours under the same preset.
"""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        count = len(state.measured)
        set_titles(self, "the parts of the step over the run", formatting.counted(count, "breakdown") if count else "")
        return history_lines(state.measured, width, self.size.height) if count else wrapped([(HISTORY_HINT, "")], width)


def history_lines(measured: Sequence[PartsMeasured], width: int, rows: int) -> list[Content]:
    """Returns a bar for each breakdown, or for each group of neighbours: at most `rows`, the latest of them."""
    room = max(8, width - LABEL_WIDTH - TIME_WIDTH)
    return [_line(group, room) for group in folded(measured, rows)]


def folded(measured: Sequence[PartsMeasured], rows: int) -> list[Sequence[PartsMeasured]]:
    """Returns groups of neighbours under the same preset, as small as fit into so many rows; the latest if none fit."""
    if rows <= 0:
        return []
    size = 1
    while len(groups := _groups(measured, size)) > rows and size < len(measured):
        size += 1
    return groups[-rows:]


def _groups(measured: Sequence[PartsMeasured], size: int) -> list[Sequence[PartsMeasured]]:
    groups: list[list[PartsMeasured]] = []
    for each in measured:
        if groups and len(groups[-1]) < size and groups[-1][-1].preset == each.preset:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [*groups]


def _line(group: Sequence[PartsMeasured], room: int) -> Content:
    seconds = sum(each.step_seconds or 0.0 for each in group) / len(group)
    sums = [sums_of([part.name for part in each.parts], [part.seconds for part in each.parts]) for each in group]
    means = {name: sum(each[name] for each in sums) / len(group) for name in PARTS}
    time = formatting.seconds(seconds)
    return Content.assemble(bar(f"{group[-1].step:,}", means, seconds, room), f"{time:>{TIME_WIDTH}}")
