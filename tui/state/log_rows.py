"""The rows of the Log view: an event each, with a level; the phases of one compilation share a row."""

from dataclasses import dataclass, field
from enum import StrEnum

from ...engine.base import figures
from ...engine.wire.events import (
    AheadEnded,
    AnyEvent,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaving,
    CheckpointsKept,
    CommandRefused,
    DevicesDiffer,
    Disconnected,
    EngineLost,
    Failed,
    HostsLost,
    HostsMeasured,
    Paused,
    PresetCompiled,
    PresetCompiling,
    PresetInspected,
    ProfileFailed,
    ProgramsKept,
    RestoreFailed,
    Stalled,
    SwitchCancelled,
    Switched,
    SwitchFailed,
    Switching,
    Welcome,
)
from .log_lines import PHASES, in_words


class Level(StrEnum):
    """How much a row matters. The filter of the view finds it by this word."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DETAIL = "detail"


ERRORS = (Failed, SwitchFailed, EngineLost, Disconnected, HostsLost, DevicesDiffer, CheckpointDamaged, RestoreFailed)
WARNINGS = (CommandRefused, CheckpointFailed, ProfileFailed, Stalled)
DETAILS = (ProgramsKept, CheckpointsKept, CheckpointSaving, PresetInspected, HostsMeasured, Switching, Welcome)


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
        """Adds an event, and returns the index of its row: a new one, or that of its compilation."""
        preset = _compiled_preset(event)
        at = self._growing.get(preset, -1)
        if at < 0:
            at = len(self.rows)
            self.rows.append(LogRow(event.time, level_of(event), in_words(event)))
        row = self.rows[at]
        if isinstance(event, PresetCompiling):
            self._growing[preset] = at
            row.phases.append(event)
            row.text = f"{event.preset}: {_spans(row.phases)} …{' (precompiling)' if event.ahead else ''}"
        elif self._growing.pop(preset, None) is not None:
            row.level = level_of(event)
            row.text = f"{in_words(event)} ({_spans(row.phases, event.time)})"
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
        PHASES[phase.phase] + ("" if stop is None else f" {figures.seconds(max(0.0, stop - phase.time))}")
        for phase, stop in zip(phases, ends, strict=True)
    )
    return ", ".join(texts)


def level_of(event: AnyEvent) -> Level:
    """Returns how much an event matters."""
    if isinstance(event, ERRORS) or (isinstance(event, Switched) and not event.digests_equal):
        return Level.ERROR
    if isinstance(event, WARNINGS) or (isinstance(event, Paused) and event.problem):
        return Level.WARNING
    return Level.DETAIL if isinstance(event, DETAILS) else Level.INFO
