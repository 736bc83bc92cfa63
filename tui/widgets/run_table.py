"""A table of runs, newest first: what each trained, how far, and whether it is live."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from rich.text import Text
from textual import work

from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.wire.run_directory import RunDirectory
from ..state.run_summary import RUNS, RunSummary, newest_first, summarise
from ..terminal.plain_table import Column, column_of
from .status_bar import PHASE_MARKS
from .table import Cells, Table

NEW = "# new"
"""Key of the row that is no run: no run has a name with a space."""


class RunTable(Table):
    """A row for each run, and before them one for a new run if wanted. Figures are read after the first frame."""

    def __init__(self, runs: Iterable[RunDirectory], new: str = "", chosen: Iterable[str] | None = None) -> None:
        """`new`: text of the row of a new run; empty for none. `chosen`: marked names; None for no marks."""
        super().__init__()
        self.runs = {directory.name: directory for directory in newest_first(runs)}
        self.new = new
        self.chosen = None if chosen is None else self.runs.keys() & set(chosen)
        self.summaries: dict[str, RunSummary] = {}
        """By name, once they are read."""
        self.problems: dict[str, str] = {}
        """Why runs cannot be read, by name."""

    def on_mount(self) -> None:
        self.draw()
        self.read()

    @property
    def run(self) -> RunDirectory | None:
        return self.runs.get(self.selected or "")

    @property
    def summary(self) -> RunSummary | None:
        return self.summaries.get(self.selected or "")

    def draw(self) -> None:
        name, *figures, state = RUNS
        columns = [
            Column[str](name.name, self.name_of),
            *(column_of(each, self.summaries.get) for each in figures),
            Column[str](state.name, self.state_of),
        ]
        self.show_columns(columns, {key: key for key in [*([NEW] if self.new else []), *self.runs]})

    def name_of(self, key: str) -> Text:
        if key == NEW:
            return Text(self.new, "bold")
        name = printable(key)
        return Text(name if self.chosen is None else f"{'[x]' if key in self.chosen else '[ ]'} {name}")

    def state_of(self, key: str) -> str:
        if summary := self.summaries.get(key):
            return f"{PHASE_MARKS[summary.state][0]} {summary.state}"
        return "" if key == NEW else "✗ unreadable" if key in self.problems else "…"

    def matching(self) -> Mapping[str, Cells]:
        """Returns the runs that match the filter, in the chosen order, below the row of a new run."""
        found = dict(super().matching())
        new = {NEW: self.all_rows[NEW]} if NEW in self.all_rows else {}
        return new | {key: cells for key, cells in found.items() if key != NEW}

    def toggle(self, name: str) -> None:
        if self.chosen is not None:
            self.chosen ^= {name}
            self.draw()

    def replace(self, name: str, directory: RunDirectory) -> None:
        """Shows a renamed run in the place of the old one."""
        self.runs = {each.name: each for each in (directory if old == name else run for old, run in self.runs.items())}
        if summary := self.summaries.pop(name, None):
            self.summaries[directory.name] = msgspec.structs.replace(
                summary, run=directory.name, directory=str(directory.path)
            )
        if problem := self.problems.pop(name, None):
            self.problems[directory.name] = problem
        self.draw()
        self.select(directory.name)

    def drop(self, name: str) -> None:
        at = self.rows.cursor_row
        del self.runs[name]
        self.draw()
        self.rows.move_cursor(row=min(at, self.rows.row_count - 1))

    @work
    async def read(self) -> None:
        """Reads the summaries in turn; each is shown at once."""
        for name, directory in list(self.runs.items()):
            try:
                self.summaries[name] = await asyncio.to_thread(summarise, directory)
            except UserError as error:
                self.problems[name] = printable("; ".join(error.problems))
            if name in self.runs:
                self.draw()
        self.post_message(self.Refilled())
