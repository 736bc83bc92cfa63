"""Log: what happened, in words."""

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.widget import Widget
from textual.widgets import RichLog

from ...engine.wire.events import AnyEvent, CommandRefused, Disconnected, EngineLost, Failed, SwitchFailed
from ..state.log_lines import in_words
from ..state.run_state import RunState
from .run_screen import RunScreen


class LogScreen(RunScreen):
    HELP = """\
## Log

Every event of the run but the steps. The same, with the steps, stands in the run's `events.jsonl`.

A switch and a restored checkpoint are told with the digests that were equal before and after: 64 bits of every array's
bits and their places. An array that changed by accident keeps its digest with odds of 2⁻⁶⁴; against intent they prove
nothing. Checkpoints of older versions have 32-bit sums, which miss some changes, and are told so.
"""
    AUTO_FOCUS: ClassVar[str | None] = "RichLog"

    def body(self) -> Iterable[Widget]:
        yield RichLog(wrap=True, markup=False)

    def on_mount(self) -> None:
        self.written = 0

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        log = self.query_one(RichLog)
        for event in state.events[self.written :]:
            log.write(_line(event))
        self.written = len(state.events)


def _line(event: AnyEvent) -> Text:
    bad = isinstance(event, Failed | SwitchFailed | EngineLost | Disconnected | CommandRefused)
    clock = time.strftime("%H:%M:%S", time.localtime(event.time)) if event.time else "        "
    return Text.assemble((f"{clock}  ", "dim"), (in_words(event), "bold red" if bad else ""))
