"""Log: the events of the run, in words."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input
from textual.widgets.option_list import Option

from ...engine.base import formatting
from ...engine.wire.events import (
    AheadEnded,
    AnyEvent,
    EngineStarted,
    Level,
    PresetCompiled,
    PresetCompiling,
    SwitchCancelled,
)
from ..bindings import identified
from ..state.run_state import RunState
from ..widgets.choices import Choices
from ..widgets.filter import Filter, pattern_of
from .run_screen import RunScreen

MARKS = {
    Level.ERROR: ("✗", "$error"),
    Level.WARNING: ("!", "$warning"),
    Level.INFO: ("·", ""),
    Level.DETAIL: (" ", "$text-muted"),
}
"""Mark and style of each level."""


@dataclass
class LogRow:
    """A row. That of a compilation grows until the program is ready."""

    time: float
    """Seconds since the epoch; 0 if unknown."""
    level: Level
    text: str
    phases: list[PresetCompiling] = field(default_factory=list[PresetCompiling])
    """Of a compilation, in order."""


class LogRows:
    """Builds the rows from the events in order."""

    def __init__(self) -> None:
        self.rows: list[LogRow] = []
        self._growing: dict[str, int] = {}
        """The row of each unfinished compilation, by preset."""

    def add(self, event: AnyEvent) -> int:
        """Adds an event, and returns the index of its row: a new one, or its compilation's."""
        if isinstance(event, EngineStarted):
            self._growing.clear()  # what the last engine did not finish is not gone on with
        preset = _compiled_preset(event)
        at = self._growing.get(preset, -1)
        if at < 0:
            at = len(self.rows)
            self.rows.append(LogRow(event.time, event.level, event.line))
        row = self.rows[at]
        if isinstance(event, PresetCompiling):
            self._growing[preset] = at
            row.phases.append(event)
            row.text = f"{event.preset}: {_spans(row.phases)} …{' (precompiling)' if event.ahead else ''}"
        elif self._growing.pop(preset, None) is not None:
            row.level = event.level
            row.text = f"{event.line} ({_spans(row.phases, event.time)})"
        return at


def _compiled_preset(event: AnyEvent) -> str:
    """Returns the preset whose compilation the event reports; empty for other events."""
    match event:
        case PresetCompiling(preset=preset) | PresetCompiled(preset=preset) | AheadEnded(preset=preset):
            return preset
        case SwitchCancelled(to_preset=preset):
            return preset
        case _:
            return ""


def _spans(phases: list[PresetCompiling], end: float | None = None) -> str:
    """Returns the phases with their seconds: `tracing 1.0 s, lowering 210 ms`. That of the last needs its `end`."""
    ends = [*(phase.time for phase in phases[1:]), end]
    texts = (
        phase.phase_words + ("" if stop is None else f" {formatting.seconds(max(0.0, stop - phase.time))}")
        for phase, stop in zip(phases, ends, strict=True)
    )
    return ", ".join(texts)


class LogScreen(RunScreen):
    """One row for each event except steps: time, level and what happened. It follows the newest row."""

    HELP = """\
## Log

All events of the run except steps: `✗` errors, `!` warnings. The run's `events.jsonl` has them all. **/** filters by
a regular expression, which also finds the levels: `error`, `warning`, `info` and `detail`. The list follows new
events while the cursor is on the last row.

A switch or a restored checkpoint is verified by digests: 64 bits for each array, computed from the bits of all elements
and their indices, equal before and after. An accidental change goes unnoticed with odds of 2⁻⁶⁴; digests are no
protection against tampering.
"""
    AUTO_FOCUS: ClassVar[str | None] = "Choices"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "log", [("slash", "filter", "Filter"), Binding("escape", "no_filter", "No filter", show=False)]
    )

    def __init__(self) -> None:
        super().__init__()
        self.added = 0
        """Number of events that are in the rows."""
        self.log_rows = LogRows()
        self.listed: set[int] = set()
        """Rows that match the filter."""

    def body(self) -> Iterable[Widget]:
        yield Filter()
        yield Choices()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        changed = [self.log_rows.add(event) for event in state.events[self.added :]]
        self.added = len(state.events)
        if changed:
            self.show_rows(dict.fromkeys(changed))

    def show_rows(self, indices: Iterable[int]) -> None:
        """Shows rows that are new or have changed, as far as they match the filter."""
        listed, pattern = self.query_one(Choices), pattern_of(self.query_one(Filter).value)
        is_at_end = listed.highlighted in (None, listed.option_count - 1)
        new: list[Option] = []
        for at in indices:
            row = self.log_rows.rows[at]
            if at in self.listed:
                listed.replace_option_prompt(str(at), row_content(row))
            elif pattern.search(f"{row.level} {row.text}"):
                new.append(Option(row_content(row), id=str(at)))
                self.listed.add(at)
        listed.add_options(new)
        if is_at_end and listed.option_count:
            listed.highlighted = listed.option_count - 1

    @on(Input.Changed)
    def apply_filter(self) -> None:
        self.query_one(Choices).clear_options()
        self.listed.clear()
        self.show_rows(range(len(self.log_rows.rows)))

    @on(Input.Submitted)
    def leave_filter(self) -> None:
        self.query_one(Choices).focus()

    def action_filter(self) -> None:
        self.query_one(Filter).open()

    def action_no_filter(self) -> None:
        self.query_one(Filter).close()
        self.query_one(Choices).focus()


def row_content(row: LogRow) -> Content:
    """Returns a row: `14:03:12 ✗ failed: out of memory`."""
    mark, style = MARKS[row.level]
    clock = time.strftime("%H:%M:%S", time.localtime(row.time)) if row.time else " " * 8
    return Content.assemble((f"{clock} ", "$text-muted"), (f"{mark} {row.text}", style))
