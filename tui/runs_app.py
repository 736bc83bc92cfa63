"""The UI over the runs of several hosts: `shardtui runs`. Each host is asked again and again."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import asdict
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from ..engine.base.encoding import encode_json
from ..engine.base.output import printable
from ..engine.base.processes import last_line
from ..engine.base.untrusted import decode
from ..engine.base.user_error import UserError
from .base_app import SingleViewApp
from .bindings import identified
from .client.remote_client import output_of
from .screens.dialog import BaseScreen
from .state.losses import Losses
from .state.run_listing import HOST_COLUMNS, BoardRow, Origin, RunInfo, RunListing, board, listed, losses_of
from .terminal.clean import clean
from .terminal.plain_table import Column
from .widgets.lines import Lines, set_titles
from .widgets.loss_plot import Curve, Plot, draw_plot
from .widgets.other_curves import STYLES
from .widgets.table import Table

ASK_SECONDS = 5.0
"""Time between an answer and the next question to the same host…"""
ASK_TIMES = 10
"""…and at least as many times as long as the answer took: the host reads whole histories for it, while it trains."""

FIRST = next(iter(STYLES))
Chosen = tuple[str, str]
"""A host, empty for this one, and a run."""


class BoardScreen(BaseScreen[None]):
    HELP = """\
## Runs

The runs of this machine and of the hosts that were named, as `shardtui ls` there lists them: those that train first.
Each host is asked every few seconds through ssh, which asks no questions; what keeps one from answering stands in its
row, and what it said last stays. **space** marks runs, of any host: their losses are drawn over one another below, each
with a letter at its end; without a mark, the losses of the run under the cursor.

**enter** opens the run under the cursor; leaving it comes back here. *trouble* is what needs a look: a run that crashed
or failed, is out of memory or stalled, whose loss is not finite, or whose checkpoint failed or is late.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = identified("board", [("space", "mark", "Mark")])

    def __init__(self) -> None:
        super().__init__()
        self.table, self.losses = Table(), LossesPane()
        self.letters: dict[str, str] = {}
        """Of the runs that are marked, by key."""

    def compose(self) -> ComposeResult:
        yield self.table
        yield self.losses
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        set_titles(self.table.rows, "runs", "enter: open")

    def show_board(self, board: Mapping[str, BoardRow]) -> None:
        self.letters = {key: letter for key, letter in self.letters.items() if key in board}
        mark = Column[BoardRow]("", lambda row: self.letters.get(row.key, ""), style="bold", leaves=9)
        self.table.show_columns([mark, *HOST_COLUMNS], board)
        self.show_losses()

    @on(DataTable.RowHighlighted)
    def show_losses(self) -> None:
        drawn = self.letters or {self.table.selected or "": FIRST}
        self.losses.show_runs(
            {letter: row for key, letter in drawn.items() if (row := self.table.given.get(key)) and row.run}
        )

    def action_mark(self) -> None:
        row = self.table.given.get(self.table.selected or "")
        free = [letter for letter in STYLES if letter not in self.letters.values()]
        if row and row.run and not self.letters.pop(row.key, None):
            if not free:
                self.warn(f"at most {len(STYLES)} runs are drawn: space also takes a mark away")
                return
            self.letters[row.key] = free[0]
        self.show_board(self.table.given)


class LossesPane(Lines):
    """The losses of several runs over one another."""

    curves: Sequence[Curve] = ()

    def on_mount(self) -> None:
        set_titles(self, "loss", "space: mark runs to compare")

    def show_runs(self, rows: Mapping[str, BoardRow]) -> None:
        """`rows`: by letter."""
        self.curves = [
            Curve(row.key.lstrip(":"), losses_of(row.run), letter, STYLES[letter])
            for letter, row in sorted(rows.items())
            if row.run
        ]
        self.draw()

    def draw(self) -> None:
        self.show(draw_plot(Plot(Losses(), self.curves), self.size.width, self.size.height))


class RunsApp(SingleViewApp[Chosen]):
    """Its result is the run to open; None if the user quits."""

    TITLE = "shardtui runs"

    def __init__(
        self,
        origins: Sequence[Origin],
        program: str,
        keymap: Mapping[str, str],
        command: str = "",
        chosen: Chosen | None = None,
        problem: str = "",
    ) -> None:
        """`program`: shardtui on the other hosts. `command`: of the user's shell, for each trouble that is new; empty
        for none. `chosen`: the run that was opened last, and the `problem` if it could not be."""
        super().__init__(keymap)
        self.origins, self.program, self.command = origins, program, command
        self.chosen, self.problem = chosen, problem
        self.board = BoardScreen()

    def get_default_screen(self) -> Screen[Any]:
        return self.board

    def on_mount(self) -> None:
        if self.problem:
            self.board.warn(self.problem)
        for origin in self.origins:
            self.run_worker(self.follow(origin))

    async def follow(self, origin: Origin) -> None:
        while True:
            began = time.monotonic()
            try:
                runs = [*map(clean, await self.ask(origin.host))]
            except UserError as error:
                origin.problem = printable("; ".join(error.problems))
            else:
                for run in origin.take(runs):
                    self.run_worker(self.tell(origin.host, run))
            self.draw()
            await asyncio.sleep(max(ASK_SECONDS, ASK_TIMES * (time.monotonic() - began)))

    async def tell(self, host: str, run: RunInfo) -> None:
        """Says that a run is in trouble: here, and to the user's command, as JSON on its stdin."""
        self.board.warn(f"{host or 'here'}: {run.run}: {run.trouble}")
        if not self.command:
            return
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_shell(self.command, stdin=pipe, stdout=nothing, stderr=pipe)
        _, words = await process.communicate(encode_json({"host": host, **asdict(run)}))
        if process.returncode:
            last = last_line(words.decode(errors="replace").splitlines())
            self.board.warn(f"--notify: exit code {process.returncode}: {last}")

    async def ask(self, host: str) -> Sequence[RunInfo]:
        """Returns the runs of a host. Raises UserError."""
        if not host:
            return (await asyncio.to_thread(listed)).runs
        answer = await output_of(host, f"{self.program} ls --json")
        return decode(answer, RunListing, "its runs", "use the same version of shardtui on both hosts").runs

    def draw(self) -> None:
        self.board.show_board(board(self.origins))
        if self.chosen and (key := ":".join(self.chosen)) in self.board.table.rows.keys:
            self.board.table.select(key)
            self.chosen = None

    @on(DataTable.RowSelected)
    def open(self, event: DataTable.RowSelected) -> None:
        host, _, run = (event.row_key.value or "").rpartition(":")
        if run:
            self.exit((host, run))
