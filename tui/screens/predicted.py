"""A dialog that predicts where the time of a step goes, for a preset that was compiled for a TPU slice."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Label

from ...engine.base.invalid import Invalid
from ...engine.wire.account import Account
from ..terminal.clean import printable
from ..widgets.operation_rows import show_operations
from ..widgets.step_bar import StepBar, title
from ..widgets.table import Table
from ..widgets.timeline import TimelineView
from .dialog import Dialog
from .time import WIDE

NOTE = (
    "Predicted, not measured: operations take the cycles that the TPU compiler estimates, one after the other; "
    "collectives take their bytes by the rate of their links. No device waits for another."
)


class PredictedScreen(Dialog[None]):
    """The step as a bar, and below it its operations, or the step as a timeline."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "timeline", "Timeline"),
        ("escape,q", "dismiss", "Close"),
    ]

    def __init__(self, preset: str, account: Callable[[], Awaitable[Account]]) -> None:
        """`account`: asks for the account, which takes a while. Raises Invalid if there is none."""
        super().__init__()
        self.preset = preset
        self.ask = account
        self.table = Table()
        self.timeline = TimelineView()

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_subtitle = "t timeline · esc back"
            yield StepBar()
            yield self.table
            yield self.timeline
            yield Label(NOTE, markup=False)

    def on_mount(self) -> None:
        self.query_one(StepBar).show_hint("Reading the compiled program …")
        self.show_below(self.table)
        self.fill()

    @work(exclusive=True)
    async def fill(self) -> None:
        """Shows the account when it is there."""
        try:
            account = await self.ask()
        except Invalid as error:
            problems = "\n".join(map(printable, error.problems))
            self.query_one(Label).update(Content.styled(problems, "$error"))
            self.query_one(StepBar).show_hint("There is no prediction.")
            return
        self.query_one(StepBar).show_account(account, self.preset, "")
        self.query_one(Vertical).border_title = title(self.preset, account)
        show_operations(self.table, account, self.size.width >= WIDE)
        self.timeline.show_account(account)
        if account.skipped:
            self.query_one(Label).update(f"{NOTE} Without an estimate, left out: {', '.join(account.skipped)}.")

    def action_timeline(self) -> None:
        """Changes between the table and the timeline."""
        self.show_below(self.table if self.timeline.display else self.timeline)

    def show_below(self, shown: Widget) -> None:
        """Shows the table or the timeline, which then takes the keys."""
        for widget in (self.table, self.timeline):
            widget.display = widget is shown
        (self.table.rows if shown is self.table else shown).focus()
