"""A dialog that predicts where the time of a step goes and what fills the memory, for a preset compiled for a slice."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Label

from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.hlo.step_cost import StepCost
from ...engine.wire.step_breakdown import StepBreakdown
from ..state.step_words import coverage
from ..widgets.memory_at_peak import MemoryAtPeak
from ..widgets.step_bar import StepBar, title
from ..widgets.table import Table
from ..widgets.timeline import TimelineView
from .dialog import Dialog
from .time import show_operations

NOTE = (
    "Predicted, not measured: operations take the cycles that the TPU compiler estimates, one after the other; "
    "collectives take their bytes by the rate of their links. No device waits for another."
)


class PredictedScreen(Dialog[None]):
    """The step as a bar, and below it its operations, the step as a timeline, or what fills the memory at its peak."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "timeline", "Timeline"),
        ("m", "memory", "Memory"),
        ("escape,q", "dismiss", "Close"),
    ]

    def __init__(self, preset: str, cost: StepCost, breakdown: Callable[[], Awaitable[StepBreakdown]]) -> None:
        """`cost`: of the compiled preset. `breakdown`: asks for the breakdown, which takes a while; raises UserError if
        there is none.
        """
        super().__init__()
        self.preset = preset
        self.cost = cost
        self.ask = breakdown
        self.note = NOTE
        self.table = Table()
        self.memory = MemoryAtPeak()
        self.timeline = TimelineView()

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_subtitle = "t timeline · m memory · esc back"
            yield StepBar()
            yield self.table
            yield self.timeline
            yield self.memory
            yield Label(NOTE, markup=False)

    def on_mount(self) -> None:
        self.query_one(StepBar).show_hint("Reading the compiled program …")
        self.show_below(self.table)
        if peak := self.cost.at_peak:
            self.memory.show_peak(peak, self.cost.peak_buffers)
        self.fill()

    @work(exclusive=True)
    async def fill(self) -> None:
        """Shows the breakdown when it is there."""
        try:
            breakdown = await self.ask()
        except UserError as error:
            self.note = Content.styled("\n".join(map(printable, error.problems)), "$error")
            self.show_note()
            self.query_one(StepBar).show_hint("There is no prediction.")
            return
        self.query_one(StepBar).show_breakdown(breakdown, self.preset, "")
        self.query_one(Vertical).border_title = title(self.preset, breakdown)
        show_operations(self.table, breakdown)
        self.timeline.show_breakdown(breakdown)
        if breakdown.skipped:
            self.note = f"{NOTE} Without an estimate, left out: {', '.join(breakdown.skipped)}."
            self.show_note()

    def action_timeline(self) -> None:
        self.show_below(self.table if self.timeline.display else self.timeline)

    def action_memory(self) -> None:
        self.show_below(self.table if self.memory.display else self.memory)

    def show_below(self, shown: Widget) -> None:
        for widget in (self.table, self.timeline, self.memory):
            widget.display = widget is shown
        focused = self.memory.table if shown is self.memory else shown
        (focused.rows if isinstance(focused, Table) else focused).focus()
        self.show_note()

    def show_note(self) -> None:
        peak = self.cost.at_peak
        covered = coverage(peak, self.cost.peak_buffers, self.cost.peak_bytes) if peak else "The buffers are not known."
        self.query_one(Label).update(f"Predicted: {covered}" if self.memory.display else self.note)
