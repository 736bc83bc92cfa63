"""A list of runs, newest first: what each trained, how far, and whether it is live."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.content import Content
from textual.widgets.option_list import Option

from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.wire.run_directory import RunDirectory
from ..state.run_summary import RUNS, RunSummary, newest_first, summarise
from .choices import Choices
from .lines import cut
from .status_bar import PHASE_MARKS

NEW, HEADING = "# new", "# heading"
"""Ids of options that are no run: no run has a name with a space."""
WIDTHS = {"age": 6, "model": 9, "preset": 10, "steps": 9, "loss": 7, "state": 11}
"""Cells of the columns beside the name."""
DISPENSABLE = ("model", "preset")
"""Columns that are left out where a run's name would be cut, the first one first."""
GAP = "  "
FIGURES = [column.name for column in RUNS if column.is_figure]
MIN_NAME = 8
DIM = "$text-muted"


class RunList(Choices):
    """A row for each run, and before them "new run" if wanted. Figures are read after the first frame."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select", "Open")]

    def __init__(self, runs: Iterable[RunDirectory], new: str = "", chosen: Iterable[str] | None = None) -> None:
        """`new`: text of the first option, for a new run; empty for none. `chosen`: marked names; None for no marks."""
        super().__init__()
        self.runs = {directory.name: directory for directory in newest_first(runs)}
        self.new = new
        self.chosen = None if chosen is None else set(chosen)
        self.summaries: dict[str, RunSummary] = {}
        """By name, once they are read."""
        self.problems: dict[str, str] = {}
        """Why runs cannot be read, by name."""

    def on_mount(self) -> None:
        self.fill()
        self.read()

    def on_resize(self) -> None:
        super().on_resize()
        self.draw()

    @property
    def run(self) -> RunDirectory | None:
        option = self.highlighted_option
        return self.runs.get(option.id or "") if option else None

    @property
    def summary(self) -> RunSummary | None:
        return self.summaries.get(self.run.name) if self.run else None

    def fill(self) -> None:
        new = [Option(Content.styled(self.new, "bold"), id=NEW)] if self.new else []
        rows = [Option("", id=name) for name in self.runs]
        self.set_options([*new, Option("", id=HEADING, disabled=True), *rows])
        self.highlighted = 0 if new else 1 if rows else None
        self.draw()

    def draw(self) -> None:
        columns = columns_for(self.scrollable_content_region.width - 2 - self.mark_width, self.runs)
        self.replace_option_prompt(HEADING, Content(" " * self.mark_width) + heading(columns))
        for name in self.runs:
            self.replace_option_prompt(name, self.row(name, columns))

    def row(self, name: str, columns: Mapping[str, int]) -> Content:
        """Returns a run's row; only its name and its problem, if it has one, until it is read."""
        mark = Content("")
        if self.chosen is not None:
            mark = Content("[x] " if name in self.chosen else "[ ] ")
        if summary := self.summaries.get(name):
            return mark + row(summary, columns)
        return mark + Content.assemble(name, (GAP + self.problems.get(name, "…"), DIM))

    @property
    def mark_width(self) -> int:
        return 0 if self.chosen is None else 4

    def toggle(self, name: str) -> None:
        if self.chosen is not None:
            self.chosen ^= {name}
            self.draw()

    def drop(self, name: str) -> None:
        at = self.highlighted
        del self.runs[name]
        self.fill()
        if at is not None and self.runs:
            self.highlighted = min(at, self.option_count - 1)

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
        if self.highlighted is not None:
            self.post_message(
                self.OptionHighlighted(self, self.get_option_at_index(self.highlighted), self.highlighted)
            )


def columns_for(width: int, names: Iterable[str]) -> dict[str, int]:
    longest = max(map(len, names), default=0)
    columns = dict(WIDTHS)
    for dispensable in DISPENSABLE:
        if _name_width(width, columns) < longest:
            del columns[dispensable]
    return {"run": max(MIN_NAME, min(longest, _name_width(width, columns))), **columns}


def _name_width(width: int, columns: Mapping[str, int]) -> int:
    return width - sum(len(GAP) + cells for cells in columns.values())


def heading(columns: Mapping[str, int]) -> Content:
    return _line({name: Content(name) for name in columns}, columns).stylize(DIM)


def row(summary: RunSummary, columns: Mapping[str, int]) -> Content:
    """Returns one row: `nano-1  3 min  nano  fsdp-tp2  1,204  2.3104  ■ stopped`."""
    mark, style = PHASE_MARKS[summary.state]
    cells = {column.name: Content(printable(column.text(summary).plain)) for column in RUNS}
    return _line(cells | {"state": Content.styled(f"{mark} {summary.state}", style)}, columns)


def _line(cells: Mapping[str, Content], columns: Mapping[str, int]) -> Content:
    parts: list[Content] = []
    for name, width in columns.items():
        cell = cut(cells[name], width)
        space = " " * (width - cell.cell_length)
        parts.append(Content.assemble(space, cell) if name in FIGURES else Content.assemble(cell, space))
    return Content(GAP).join(parts)
