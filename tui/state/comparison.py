"""Measures presets one after the other in a live run. It takes the run's events, and returns the next command."""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median, quantiles

from ...engine.planning.ranking import Measured
from ...engine.spec.preset_files import is_pitfall
from ...engine.wire.commands import AnyCommand, SwitchPreset
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import (
    AnyEvent,
    Disconnected,
    EngineLost,
    EngineStarted,
    EngineStopped,
    Failed,
    MemoryMeasured,
    Restored,
    StepsDone,
    SwitchCancelled,
    Switched,
    SwitchFailed,
)

STEPS = 20
"""Steps that are measured under each preset by default."""
WARM_UP_STEPS = 3
"""Steps that are skipped after a switch, and after any background work."""
CANCELLED = "cancelled"


class Stage(StrEnum):
    SWITCHING = "switching"
    MEASURING = "measuring"
    RETURNING = "returning"
    OVER = "over"


class Comparison:
    """A comparison of presets in a live run.

    Each preset is measured after a switch to it; the one that was active before comes last. A switch that another
    viewer requests ends the comparison, and the run keeps that preset.
    """

    def __init__(
        self, presets: Sequence[str], active: str, steps: int = STEPS, bytes_in_use: int | None = None
    ) -> None:
        """`active`: the run's preset, to which it returns. `bytes_in_use`: as reported last, per device."""
        self.presets = list(presets)
        self.origin = active
        """The preset that the run returns to."""
        self.steps = steps
        self.stage = Stage.SWITCHING
        self.current: str | None = None
        """The preset that is switched to or measured, or was when the comparison ended; None before it begins."""
        self.problems: dict[str, list[str]] = {}
        self.ended_by: str | None = None
        self._remaining = [name for name in presets if name != active] + [name for name in presets if name == active]
        self._active = active
        self._seconds: dict[str, list[float]] = {}
        self._bytes = {} if bytes_in_use is None else {active: bytes_in_use}
        """Memory in use on a device, by preset."""
        self._warm_up = WARM_UP_STEPS
        self._first = self._last = 0.0
        """Times of the first and the last event, in seconds since the epoch."""
        self._is_stale = True

    @property
    def is_over(self) -> bool:
        return self.stage is Stage.OVER

    @property
    def done(self) -> int:
        return len(self._seconds.get(self.current or "", ()))

    @property
    def position(self) -> int:
        return len(self.presets) - len(self._remaining)

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the time that the remaining presets take, from those before; None until one is measured."""
        finished = self.position - 1
        return None if finished < 1 else (self._last - self._first) / finished * (len(self.presets) - finished)

    def measured(self, preset: str, tokens_per_step: int) -> Measured | None:
        """Returns the figures of a preset; None while it is measured, and if no step was."""
        seconds = self._seconds.get(preset)
        if not seconds or (self.stage is Stage.MEASURING and preset == self.current):
            return None
        lower, _, upper = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        return Measured(
            steps=len(seconds),
            step_seconds=median(seconds),
            fastest_seconds=min(seconds),
            slowest_seconds=max(seconds),
            lower_quartile_seconds=lower,
            upper_quartile_seconds=upper,
            tokens_per_second=tokens_per_step / median(seconds),
            bytes_in_use=self._bytes.get(preset),
        )

    def cancel(self) -> AnyCommand | None:
        """Returns the run to its original preset, in place of a switch that is pending."""
        if self.is_over or self.stage is Stage.RETURNING:
            return None
        self.ended_by = CANCELLED
        if self.stage is Stage.MEASURING and self._active == self.origin:
            return self._end()
        return self._return()

    def follow(self, event: AnyEvent, active: str, is_quiet: bool) -> AnyCommand | None:
        """Takes the events in order. `active`: the run's preset now. `is_quiet`: it trains, with no background work."""
        self._first, self._last = self._first or event.time, max(self._last, event.time)
        if isinstance(event, MemoryMeasured):
            self._bytes[active] = event.bytes_in_use
        if self.is_over:
            return None
        self._active = active
        if isinstance(event, Switched):  # all steps before the switch were reported before it
            self._is_stale = False
        self._is_stale |= not is_quiet or isinstance(event, Restored)
        match event:
            case StepsDone() if self.stage is Stage.MEASURING:
                return self._record(event.step_seconds, is_quiet)
            case Switched() | SwitchFailed() | SwitchCancelled():
                return self._after_switch(event)
            case EngineStarted():
                return self._end("another engine resumed the run")
            case EngineStopped():
                return self._end(f"the run ended after step {event.step:,}")
            case Failed():
                return self._end("; ".join(event.problems))
            case EngineLost() | Disconnected():
                return self._end(event.reason)
            case _:
                return None

    def proceed(self) -> AnyCommand | None:
        """Begins with the next preset, the first of them at first; after the last one it returns or ends."""
        if self._remaining:
            self.current = self._remaining.pop(0)
            if self.current == self._active:
                self._is_stale = True
                return self._measure()
            self.stage = Stage.SWITCHING
            return SwitchPreset(self.current)
        return self._end() if self._active == self.origin else self._return()

    def _measure(self) -> None:
        self.stage, self._warm_up = Stage.MEASURING, WARM_UP_STEPS

    def _return(self) -> AnyCommand:
        self.stage, self.current = Stage.RETURNING, self.origin
        return SwitchPreset(self.origin)

    def _end(self, why: str | None = None) -> None:
        self.ended_by = why or self.ended_by
        self.stage = Stage.OVER

    def _record(self, seconds: list[float], is_quiet: bool) -> AnyCommand | None:
        """Records the times of steps that ran alone."""
        if self._is_stale:
            self._warm_up, self._is_stale = WARM_UP_STEPS, not is_quiet
            return None
        skipped = min(self._warm_up, len(seconds))
        self._warm_up -= skipped
        recorded = self._seconds.setdefault(self.current or "", [])
        recorded += seconds[skipped:][: self.steps - len(recorded)]
        return self.proceed() if len(recorded) >= self.steps else None

    def _after_switch(self, event: Switched | SwitchFailed | SwitchCancelled) -> AnyCommand | None:
        if self.stage is Stage.RETURNING:
            return self._after_return(event)
        match event:
            case Switched() if event.to_preset == self.current:
                if event.from_preset in self._bytes:  # reported when it changes: until then it is the same
                    self._bytes.setdefault(event.to_preset, self._bytes[event.from_preset])
                return self._measure()
            case SwitchFailed() if event.to_preset == self.current:
                self.problems[event.to_preset] = event.problems
                self._seconds.pop(event.to_preset, None)
                return self.proceed()
            case Switched():
                return self._end(f"a viewer switched the run to {event.to_preset}")
            case SwitchCancelled() if event.to_preset == self.current:
                return self._end(f"a viewer cancelled the switch to {event.to_preset}")
            case _:
                return None

    def _after_return(self, event: Switched | SwitchFailed | SwitchCancelled) -> None:
        """A switch that was pending when the return was requested may still happen first."""
        if self._active == self.origin:
            self._end()
        elif isinstance(event, SwitchFailed) and event.to_preset == self.origin:
            self._end(f"cannot return to {self.origin}: {'; '.join(event.problems)}")
        elif isinstance(event, SwitchCancelled) and event.to_preset == self.origin:
            self._end(f"a viewer cancelled the switch to {self.origin}")


def comparable_presets(presets: Sequence[PresetInfo]) -> list[str]:
    return [info.name for info in presets if info.fits and not is_pitfall(info.name)]


def in_progress(comparison: Comparison) -> str:
    """Returns the progress, such as `fsdp (2 of 8): 12 of 20 steps`; empty once the comparison is over."""
    at = f"{comparison.current} ({comparison.position} of {len(comparison.presets)})"
    match comparison.stage:
        case Stage.SWITCHING:
            return f"{at}: switching"
        case Stage.MEASURING:
            return f"{at}: {comparison.done} of {comparison.steps} steps"
        case Stage.RETURNING:
            return f"returning to {comparison.current}"
        case Stage.OVER:
            return ""
