"""Where the wall time of a run went: among steps and all that is not a step, from its events, in one pass."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from ...engine.base import formatting
from ...engine.wire.events import (
    AnyEvent,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSaving,
    ClockChanged,
    EngineLost,
    EngineStarted,
    EngineStopped,
    Evaluated,
    Failed,
    Paused,
    PresetCompiled,
    PresetCompiling,
    Profiled,
    ProfileFailed,
    ProfileWriting,
    Restored,
    Resumed,
    StepsDone,
    Switched,
    SwitchFailed,
    Switching,
    TrainingStarted,
)

LEAST_SHARE = 0.005
"""Smaller parts are left out of a sentence: they would be 0 %."""


class Part(StrEnum):
    """A use of a run's time. The value is its name in a sentence."""

    STEPS = "steps"
    REPEATED_STEPS = "repeated steps"
    INPUT = "input wait"
    COMPILING = "compiling"
    SWITCHING = "switching"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    TRACING = "tracing"
    PAUSED = "paused"
    STARTING = "starting"
    NO_ENGINE = "no engine"
    OTHER = "other"


class Goodput(Struct, frozen=True, kw_only=True):
    """The wall time of a run, from its first event to its last, or to now if it is live. The parts add up to it."""

    wall_seconds: float
    """Seconds of wall time."""
    share: float | None
    """Fraction of the wall time in `steps_seconds`; null if there is no wall time yet."""
    steps_seconds: float
    """Seconds of steps, of those that were repeated the first time. With an external loop also what it does between
    steps."""
    repeated_steps_seconds: float
    """Seconds of steps that were made again after a fault, or after going back to a checkpoint."""
    input_seconds: float | None
    """Seconds that devices waited for batches, at most; null if an external loop prepares them: then they are in
    `steps_seconds`."""
    compiling_seconds: float
    """Seconds that training waited for a compilation. Steps that run during one are steps."""
    switching_seconds: float
    """Seconds that training waited while a switch moved the state, also if it failed."""
    checkpoints_seconds: float
    """Seconds that training waited to save and restore checkpoints. Steps that run while one is written are steps."""
    evaluation_seconds: float
    """Seconds that training waited for evaluations of the held-out data."""
    tracing_seconds: float
    """Seconds that training waited while a trace was written and read."""
    paused_seconds: float
    """Seconds that training was paused, without the steps, switches and checkpoints of that time."""
    starting_seconds: float
    """Seconds from the start of an engine to its first step, without compilation and restoring."""
    no_engine_seconds: float
    """Seconds between the end of an engine and the start of the next; after a crash, from the last event on."""
    other_seconds: float
    """Seconds of nothing above, such as steps that were lost in a crash, and ending the engine."""

    @property
    def parts(self) -> dict[Part, float]:
        seconds = {part: getattr(self, f"{part.name.lower()}_seconds") for part in Part}
        return {part: value for part, value in seconds.items() if value is not None}


def goodput_words(goodput: Goodput, width: int | None = None) -> str:
    """Returns `91 % steps · 4 % checkpoints · 3 % compiling`: steps, then what took most. Empty before any time passed.

    `width`: cells to fit in, without the smallest parts if need be.
    """
    wall = goodput.wall_seconds
    if not wall:
        return ""
    shares = {part: seconds / wall for part, seconds in goodput.parts.items()}
    others = sorted(shares.keys() - {Part.STEPS}, key=lambda part: (-shares[part], part))
    words = [f"{formatting.percent(shares[part])} {part}" for part in others if shares[part] >= LEAST_SHARE]
    words.insert(0, f"{formatting.percent(shares[Part.STEPS])} {Part.STEPS}")
    if goodput.input_seconds is None:
        words.append(f"{Part.INPUT} unknown")
    while width is not None and len(words) > 1 and len(" · ".join(words)) > width:
        words.pop()
    return " · ".join(words)


OPEN = (Part.COMPILING, Part.SWITCHING, Part.TRACING, Part.PAUSED, Part.STARTING)
"""Parts that go on until the event that ends them; the seconds of steps are known once they are reported."""


class WallTime:
    """Divides the time between events. The seconds that an event reports are of its part; the rest of the time since
    the last division is of what was going on. Events of background threads, such as a checkpoint that is written,
    divide nothing.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(Part, 0.0)
        self._going_on = Part.NO_ENGINE
        """The part of the time after `_divided`."""
        self._divided = 0.0
        """The time up to which all is divided, in seconds since the epoch; 0 before the first event."""
        self._last = 0.0
        self._written = 0.0
        self._furthest = 0
        self._is_paused = False
        self._is_input_known = True

    def add(self, event: AnyEvent) -> None:
        """Adds an event other than steps. One that a viewer makes has no time: it counts as at that of the last one."""
        previous, self._last = self._last, event.time or self._last
        self._divided = self._divided or self._last
        match event:
            case EngineStarted():
                self._end(previous or self._last)
                self._begin(Part.STARTING)
                self._is_paused = False
            case EngineStopped():
                self._divide(self._last, (Part.CHECKPOINTS, self._written - self._divided))  # it waited for this one
                self._end(self._last)
            case Failed() | EngineLost():
                self._end(self._last)
            case ClockChanged():  # that time has not passed
                self._divided += event.seconds
                self._written += event.seconds
            case CheckpointSaved() | CheckpointFailed():
                self._written = self._last
            case CheckpointSaving() | Restored():
                self._add_checkpoint(event)
            case Evaluated():
                self._divide(self._last, (Part.EVALUATION, event.seconds))
            case Paused() | Resumed():
                self._is_paused = isinstance(event, Paused)
                self._begin(self._between_steps)
            case _:
                self._add_work(event)

    def add_steps(self, reports: Sequence[StepsDone]) -> None:
        """Adds reports of steps, in order, at once: a history is mostly these."""
        if self._going_on is not self._between_steps and reports[1:]:  # the event that ends it is missing
            self.add_steps(reports[:1])
            reports = reports[1:]
        self._divided = self._divided or max(0.0, reports[0].time - sum(reports[0].step_seconds))
        took = waited = repeated = 0.0
        for report in reports:
            seconds, input_wait = sum(report.step_seconds), report.input_wait_seconds
            again = self._furthest - report.step + len(report.step_seconds)
            if input_wait is None:
                self._is_input_known, input_wait = False, 0.0
            if again > 0 and seconds:
                repeated += sum(report.step_seconds[:again]) * max(0.0, 1 - input_wait / seconds)
            took += seconds
            waited += min(input_wait, seconds)
            self._furthest = max(self._furthest, report.step)
        self._last = reports[-1].time or self._last
        steps = took - waited - repeated
        self._divide(self._last, (Part.STEPS, steps), (Part.INPUT, waited), (Part.REPEATED_STEPS, repeated))
        self._going_on = self._between_steps

    def until(self, now: float | None) -> Goodput:
        """Returns the parts up to the last event. With `now`, of a live run, what has not ended counts until then."""
        seconds = dict(self._seconds)
        if now is not None and self._going_on in OPEN:
            seconds[self._going_on] += max(0.0, now - self._divided)
        wall = sum(seconds.values())
        parts = {f"{part.name.lower()}_seconds": value for part, value in seconds.items()}
        found = Goodput(wall_seconds=wall, share=seconds[Part.STEPS] / wall if wall else None, **parts)
        return found if self._is_input_known else replace(found, input_seconds=None)

    @property
    def _between_steps(self) -> Part:
        return Part.PAUSED if self._is_paused else Part.OTHER

    def _add_checkpoint(self, event: CheckpointSaving | Restored) -> None:
        """Unless training is paused, all time since the last step is spent on a checkpoint that is saved then."""
        if isinstance(event, Restored):
            self._divide(self._last, (Part.CHECKPOINTS, event.seconds))
        elif self._going_on is Part.OTHER:
            self._divide(self._last, (Part.CHECKPOINTS, self._last - self._divided))
        else:
            self._divide(self._last, (Part.CHECKPOINTS, event.stall_seconds))

    def _add_work(self, event: AnyEvent) -> None:
        going_on = self._going_on
        match event:
            case TrainingStarted():
                self._begin(self._between_steps)
            case PresetCompiling() if going_on is Part.STARTING:
                self._begin(Part.COMPILING)
            case PresetCompiled() if going_on is Part.COMPILING:
                self._begin(Part.STARTING)
            case Switching():
                self._going_on = Part.COMPILING if going_on is Part.OTHER else going_on  # the switch waited for it
                self._begin(Part.SWITCHING)
            case Switched() | SwitchFailed() if going_on is Part.SWITCHING:
                self._begin(self._between_steps)
            case ProfileWriting():
                self._begin(Part.TRACING)
            case Profiled() | ProfileFailed() if going_on is Part.TRACING:
                self._begin(self._between_steps)
            case _:
                pass

    def _begin(self, part: Part) -> None:
        self._divide(self._last)
        self._going_on = part

    def _end(self, time: float) -> None:
        self._divide(time)
        self._going_on = Part.NO_ENGINE

    def _divide(self, time: float, *claims: tuple[Part, float]) -> None:
        """Divides the time up to `time`: each claim gets its seconds as far as they go, the rest is of what goes on.

        Time does not run backwards: if the clock was set back, the division goes on from there.
        """
        rest = max(0.0, time - self._divided)
        for part, claimed in claims:
            given = min(max(0.0, claimed), rest)
            self._seconds[part] += given
            rest -= given
        self._seconds[self._going_on] += rest
        self._divided = time
