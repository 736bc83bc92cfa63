"""The UI over the runs of several hosts: `shardtui runs`. Each host is asked again and again."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import asdict
from textual import on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from ..engine.base.encoding import encode_json
from ..engine.base.output import printable
from ..engine.base.processes import last_line
from ..engine.base.untrusted import decode
from ..engine.base.user_error import UserError
from .base_app import SingleViewApp
from .client.remote_client import output_of
from .screens.dialog import BaseScreen
from .state.run_listing import HOST_COLUMNS, Origin, RunInfo, RunListing, board, in_new_trouble, listed
from .terminal.clean import clean
from .widgets.lines import set_titles
from .widgets.table import Table

ASK_SECONDS = 5.0
"""Time between an answer and the next question to the same host…"""
ASK_TIMES = 10
"""…and at least as many times as long as the answer took: the host reads whole histories for it, while it trains."""

Chosen = tuple[str, str]
"""A host, empty for this one, and a run."""


class BoardScreen(BaseScreen[None]):
    HELP = """\
## Runs

The runs of this machine and of the hosts that were named, as `shardtui ls` there lists them: those that train first.
Each host is asked every few seconds through ssh, which asks no questions; what keeps one from answering stands in its
row, and what it said last stays.

**enter** opens the run under the cursor; leaving it comes back here. *trouble* is what needs a look: a run that crashed
or failed, is out of memory or stalled, whose loss is not finite, or whose checkpoint failed or is late.
"""
    AUTO_FOCUS: ClassVar[str | None] = "DataTable"

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def compose(self) -> ComposeResult:
        yield self.table
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        set_titles(self.table.rows, "runs", "enter: open")


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
                for run in in_new_trouble(origin, runs):
                    self.run_worker(self.tell(origin.host, run))
                origin.runs, origin.problem = runs, ""
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
        self.board.table.show_columns(HOST_COLUMNS, board(self.origins))
        if self.chosen and (key := ":".join(self.chosen)) in self.board.table.keys:
            self.board.table.select(key)
            self.chosen = None

    @on(DataTable.RowSelected)
    def open(self, event: DataTable.RowSelected) -> None:
        host, _, run = (event.row_key.value or "").rpartition(":")
        if run:
            self.exit((host, run))
