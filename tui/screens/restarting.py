"""A dialog shown while the engine saves and exits, before a new one resumes the run."""

import math
import time
from typing import ClassVar, Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Label

from ...engine.base import formatting
from ...engine.base.processes import Deadline
from ...engine.wire.commands import Stop
from ...engine.wire.run_directory import RunDirectory
from ..client.stopping import Activity, exit_limit_seconds, kill, stop
from .dialog import Dialog

POLL_SECONDS = 0.5
UNTRAINED_TIMEOUT_SECONDS = 5.0
"""Seconds without activity after which an engine that has not trained is killed: nothing is lost, and the user waits
for the next one. The engine gives itself longer (`STARTING_SECONDS` of its watchdog), counted from the command: it does
not know whether a user is waiting."""
STILL_NOTICE_SECONDS = 3.0
"""Seconds without activity after which the dialog says so."""


class Restarting(Dialog[Literal["ended", "detach"]]):
    """The seconds so far, the bytes read and written, and keys to kill the engine or to detach.

    Its result is "ended" once the engine is gone, or "detach".
    """

    BINDINGS: ClassVar[list[BindingType]] = [("k", "kill", "Kill it"), ("d", "dismiss('detach')", "Detach")]

    def __init__(self, directory: RunDirectory, step: int, has_trained: bool) -> None:
        super().__init__()
        self.directory = directory
        self.step = step
        self.has_trained = has_trained
        self.activity = Activity(directory)
        self.exit_limit_seconds = exit_limit_seconds(directory) if has_trained else UNTRAINED_TIMEOUT_SECONDS

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "restart"
            yield Label(markup=False)

    def on_mount(self) -> None:
        self.poll()
        self.set_interval(POLL_SECONDS, self.poll)
        self.wait_for_end()

    def poll(self) -> None:
        self.activity.poll()
        self.query_one(Label).update("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Returns the text of the dialog: progress, a warning if nothing moves, and the keys."""
        seconds = formatting.seconds(round(time.monotonic() - self.activity.began))
        doing = f"is saving step {self.step:,}, then ends" if self.has_trained else "is ending; it has not trained yet"
        size = formatting.size(self.activity.bytes)
        lines = [f"{self.directory.name} {doing}: {seconds}", f"{size} read and written so far"]
        if self.activity.idle_seconds > STILL_NOTICE_SECONDS:
            still, limit = (
                formatting.seconds(round(self.activity.idle_seconds)),
                formatting.seconds(self.exit_limit_seconds),
            )
            lines.append(f"no progress for {still}: killed after {limit}")
        return [*lines, "", "k  kill it now: unsaved steps are lost", "d  detach: it finishes saving by itself"]

    @work
    async def wait_for_end(self) -> None:
        """Waits for as long as the engine is active, however long a save takes; then kills it."""
        command = Stop(unhurried=self.has_trained)
        if await stop(self.directory, command, Deadline(math.inf), self.has_stalled):
            await kill(self.directory)
        self.dismiss("ended")

    def has_stalled(self) -> bool:
        return self.activity.idle_seconds > self.exit_limit_seconds

    async def action_kill(self) -> None:
        await kill(self.directory)
