"""The first screen where there are earlier runs: start a new one, or open, resume or delete one of them."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer

from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.wire.run_directory import RunDirectory
from ..state.run_listing import delete
from ..widgets.lines import set_titles
from ..widgets.run_table import RunTable
from ..widgets.table import Table
from .confirm import AskName, Confirm
from .dialog import Dialog


@dataclass(frozen=True)
class ChosenRun:
    """The user's choice."""

    run: RunDirectory | None = None
    """The run to open; None for a new one."""
    resumes_after: int | None = None
    """The steps that it has done, if a new engine resumes it; else None."""


class RunsScreen(Dialog[ChosenRun | None]):
    """The earlier runs, newest first, below "new run". Its result is the choice, or None if the user leaves."""

    HELP = """\
## Runs

The runs on this machine, newest first. **enter** attaches to one that trains, and shows the curves of one that has
ended; **r** goes on with that from its last checkpoint, in a new engine process. A run that another program trains is
only watched. Checkpoints in a directory of their own stay when a run is deleted.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("r", "resume", "Resume"),
        ("n", "rename", "Rename"),
        ("D", "delete", "Delete"),
        ("question_mark", "app.help", "Help"),
        ("escape,q,ctrl+q", "dismiss", "Quit"),
    ]

    def __init__(self, runs: Iterable[RunDirectory]) -> None:
        super().__init__()
        self.table = RunTable(runs, new="new run")

    def compose(self) -> ComposeResult:
        yield self.table
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        set_titles(self.table.rows, "shardtui: start a run, or open an earlier one", "enter: open")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "resume":
                return bool((summary := self.table.summary) and summary.is_over and not summary.is_external)
            case "delete" | "rename":
                return bool((run := self.table.run) and not self.is_live(run))
            case _:
                return True

    def is_live(self, run: RunDirectory) -> bool:
        summary = self.table.summaries.get(run.name)
        return summary.is_live if summary else run.name not in self.table.problems

    @on(DataTable.RowHighlighted)
    @on(Table.Refilled)
    def show_keys(self) -> None:
        self.refresh_bindings()

    @on(DataTable.RowSelected)
    def open(self, event: DataTable.RowSelected) -> None:
        """Opens the selected run, or a new one; not a run that cannot be read."""
        run = self.table.runs.get(event.row_key.value or "")
        if run and (problem := self.table.problems.get(run.name)):
            self.warn(problem)
        else:
            self.dismiss(ChosenRun(run))

    def action_resume(self) -> None:
        if summary := self.table.summary:
            self.dismiss(ChosenRun(self.table.run, summary.step))

    @work
    async def action_delete(self) -> None:
        """Deletes the run under the cursor, once the user has confirmed it."""
        if (run := self.table.run) is None:
            return
        confirm = Confirm(question(run), yes="Delete", no="Keep it")
        if not await self.app.push_screen(confirm, wait_for_dismiss=True):  # pyright: ignore[reportUnknownMemberType]
            return
        with self.warning():
            await asyncio.to_thread(delete, run)
            self.table.drop(run.name)

    @work
    async def action_rename(self) -> None:
        if (run := self.table.run) is None:
            return
        ask = AskName(f"New name of run {run.name}", run.name)
        name = await self.app.push_screen(ask, wait_for_dismiss=True)  # pyright: ignore[reportUnknownMemberType]
        if name is None:
            return
        with self.warning():
            self.table.replace(run.name, await asyncio.to_thread(run.rename, name))


def question(run: RunDirectory) -> str:
    config = None
    with suppress(UserError):  # of an external loop, or damaged
        config = run.config
    stay = f" Its checkpoints in {run.checkpoints(config)} stay." if config and config.checkpoints.directory else ""
    goes = "its events and log" if stay else "its events, log and checkpoints"
    return printable(f"Delete run {run.name}, with {goes}? This cannot be undone.{stay}")
