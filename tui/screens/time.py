"""Time: where the time of a step went, as the profiler measured it, and each operation of the step."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.events import Resize
from textual.widget import Widget

from ...engine.base import figures
from ...engine.wire.account import Account, CollectiveTime, OperationTime
from ...engine.wire.events import Profiled
from ..bindings import key_of
from ..state.run_state import RunState
from ..widgets.lines import set_titles
from ..widgets.step_bar import StepBar
from ..widgets.table import Table, right
from .run_screen import RunScreen

WIDE = 110
"""Columns of a terminal from which all columns of the table are shown."""
NARROW_COLUMNS = ("operation", "share", "time", "times", "source")
COLUMNS = ("operation", "share", "time", "times", "waiting", "exposed", "hidden", "part", "source", "module")


class TimeScreen(RunScreen):
    """The step as a bar cut into its parts, and a table of its operations."""

    HELP = """\
## Time

Where the time of a step went, measured by the profiler over whole steps: **p** traces the next five. The bars are the
mean of the devices and each device, or the mean of neighbours if there are many. Each moment of a device counts once.

*products* matrix products, *fusions* and *copies* other work on the device. Of collectives: *waiting* for other
devices to begin, then *exposed*, while the device does nothing else; *hidden* time passes behind work and is no part of
the step. Between steps: *input*, the host prepares a batch, or *host*. *idle*: within a step, nothing runs.

In the table, *time* is the mean of the devices per step, *times* how often the operation ran. **o** sorts by the next
column; **/** filters: `all-` leaves collectives.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"

    def __init__(self) -> None:
        super().__init__()
        self.shown: tuple[Profiled, bool] | None = None

    def body(self) -> Iterable[Widget]:
        yield StepBar()
        self.table = Table()
        yield self.table

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if state.profiled is None or state.profiled.account is None:
            self.query_one(StepBar).show_profile(None, self.hint)
            return
        shown = (state.profiled, self.size.width >= WIDE)
        if shown != self.shown:
            self.shown = shown
            self.query_one(StepBar).show_profile(state.profiled, "")
            self.show_operations(state.profiled.account)

    def show_operations(self, account: Account) -> None:
        """Fills the table, with as many columns as the terminal has room for."""
        names = COLUMNS if self.size.width >= WIDE else NARROW_COLUMNS
        collectives = {each.name: each for each in account.collectives}
        rows: dict[str, list[Text]] = {}
        for each in account.operations:
            cells = dict(zip(COLUMNS, _cells(each, collectives.get(each.name), account), strict=True))
            rows[each.name] = [cells[name] for name in names]
        self.table.show_rows(names, rows)
        more = f" and {account.operations_left_out} more" if account.operations_left_out else ""
        set_titles(self.table.rows, f"{len(account.operations)} operations{more}")

    @on(Resize)
    def show_columns(self) -> None:
        self.show_state(self.state)

    @property
    def hint(self) -> str:
        """What to do for an account."""
        profiled = self.state.profiled
        if profiled and profiled.problem:
            return f"The trace of step {profiled.step:,} could not be read: {profiled.problem}"
        if self.state.profiling:
            return "Tracing: the account follows."
        if self.state.is_live and not self.state.watched:
            return f"{key_of(self, 'profile')} traces the next five steps and shows here where their time goes."
        return "No step of this run was profiled."


def _cells(each: OperationTime, collective: CollectiveTime | None, account: Account) -> list[Text]:
    times = (collective.waiting_seconds, collective.exposed_seconds, collective.hidden_seconds) if collective else ()
    return [
        Text(each.name),
        right(f"{100 * each.seconds / account.step_seconds:.1f} %"),
        right(figures.seconds(each.seconds)),
        right(f"{each.count:,.3g}"),
        *(right(figures.seconds(value)) for value in times),
        *[right("")] * (3 - len(times)),
        Text(each.part),
        Text(figures.short_source(each.source)),
        Text(each.module, "dim"),
    ]
