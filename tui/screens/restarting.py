"""Shown while the engine saves and ends, so that another one goes on: what moves, and how to wait no longer."""

import time
from typing import ClassVar, Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Label

from ...engine.base import figures
from ...engine.wire.commands import Stop
from ...engine.wire.run_directory import RunDirectory
from ..client.life_signs import LifeSigns
from ..client.stopping import End, kill, patience, stop
from .dialog import Dialog

LOOK_SECONDS = 0.5
STARTING_SECONDS = 5.0
"""In which an engine ends that has not trained yet: it has nothing to save."""
STILL_SECONDS = 3.0
"""Without a sign of life that is worth a word."""


class Restarting(Dialog[Literal["ended", "detach"]]):
    BINDINGS: ClassVar[list[BindingType]] = [("k", "kill", "Kill it"), ("d", "dismiss('detach')", "Detach")]

    def __init__(self, directory: RunDirectory, step: int, has_trained: bool) -> None:
        super().__init__()
        self.directory = directory
        self.step = step
        self.has_trained = has_trained
        self.signs = LifeSigns(directory)
        self.patience = patience(directory) if has_trained else STARTING_SECONDS

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "restart"
            yield Label(markup=False)

    def on_mount(self) -> None:
        self.look()
        self.set_interval(LOOK_SECONDS, self.look)
        self.wait_for_end()

    def look(self) -> None:
        self.signs.look()
        self.query_one(Label).update("\n".join(self.lines()))

    def lines(self) -> list[str]:
        seconds = figures.seconds(round(time.monotonic() - self.signs.began))
        doing = f"saves step {self.step:,} and ends" if self.has_trained else "ends: it has not trained yet"
        lines = [f"{self.directory.name} {doing}: {seconds}", f"{figures.size(self.signs.written)} written so far"]
        if self.signs.still_seconds > STILL_SECONDS:
            still, limit = figures.seconds(round(self.signs.still_seconds)), figures.seconds(self.patience)
            lines.append(f"nothing has moved for {still}: after {limit} it is killed")
        return [*lines, "", "k  kill it now: what is not saved is lost", "d  detach: it saves and ends by itself"]

    @work
    async def wait_for_end(self) -> None:
        """For as long as it moves, however long a save takes."""
        end: End = await stop(self.directory, Stop(unhurried=self.has_trained), self.is_late)
        if end != "ended":
            await kill(self.directory)
        self.dismiss("ended")

    def is_late(self) -> bool:
        return self.signs.still_seconds > self.patience

    async def action_kill(self) -> None:
        await kill(self.directory)
