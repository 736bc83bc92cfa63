"""Presets measured one after the other in a run that goes on: what happened goes in, what to ask next comes out."""

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
"""Measured under each preset where no other number is asked for."""
WARM_UP = 3
"""Steps that are left out after a switch, and after anything that ran beside the steps."""
CANCELLED = "cancelled"


class Stage(StrEnum):
    SWITCHING = "switching"
    MEASURING = "measuring"
    RETURNING = "returning"
    OVER = "over"


class Comparison:
    """Each preset is measured after a switch to it, the one that was active before comes last. The switches of others
    are theirs: one of them ends the comparison, and the run stays where it was put."""

    def __init__(
        self, presets: Sequence[str], active: str, steps: int = STEPS, bytes_in_use: int | None = None
    ) -> None:
        """`active`: the preset that the run is under, and is again in the end. `bytes_in_use`: as told last."""
        self.presets = list(presets)
        self.origin = active
        self.steps = steps
        self.stage = Stage.SWITCHING
        self.current: str | None = None
        """The preset that a switch goes to or that is measured, or was when it ended."""
        self.problems: dict[str, list[str]] = {}
        """Why presets could not be measured."""
        self.ended_by: str | None = None
        """Why it is over, where it was not finished."""
        self._left = [name for name in presets if name != active] + [name for name in presets if name == active]
        self._active = active
        self._seconds: dict[str, list[float]] = {}
        self._bytes = {} if bytes_in_use is None else {active: bytes_in_use}
        self._warm_up = WARM_UP
        self._is_stale = True
        """The next report may hold steps that did not run alone."""

    @property
    def is_over(self) -> bool:
        return self.stage is Stage.OVER

    @property
    def done(self) -> int:
        """Steps measured under the current preset."""
        return len(self._seconds.get(self.current or "", ()))

    @property
    def place(self) -> int:
        """Of the current preset, from 1 on."""
        return len(self.presets) - len(self._left)

    def measured(self, preset: str, tokens_per_step: int) -> Measured | None:
        """None while it is, and where not one step was."""
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

    def begin(self) -> AnyCommand | None:
        """What to ask of the engine, here and below; None for nothing."""
        return self._next()

    def cancel(self) -> AnyCommand | None:
        """Back to the preset that it came from. Asking for the active one takes back a switch that is pending."""
        if self.is_over or self.stage is Stage.RETURNING:
            return None
        self.ended_by = CANCELLED
        if self.stage is Stage.MEASURING and self._active == self.origin:
            return self._end()
        return self._return()

    def follow(self, event: AnyEvent, active: str, is_quiet: bool) -> AnyCommand | None:
        """What happened, in order. `active`: the preset that the run is under now. `is_quiet`: it trains, and nothing
        runs beside the steps."""
        if isinstance(event, MemoryMeasured):
            self._bytes[active] = event.bytes_in_use
        if self.is_over:
            return None
        self._active = active
        if isinstance(event, Switched):  # all steps before it were reported before it
            self._is_stale = False
        self._is_stale |= not is_quiet or isinstance(event, Restored)
        match event:
            case StepsDone() if self.stage is Stage.MEASURING:
                return self._take(event.step_seconds, is_quiet)
            case Switched() | SwitchFailed() | SwitchCancelled():
                return self._after_switch(event)
            case EngineStarted() | EngineStopped() | Failed() | EngineLost() | Disconnected():
                return self._end(_why_over(event))
            case _:
                return None

    def _next(self) -> AnyCommand | None:
        if self._left:
            self.current = self._left.pop(0)
            if self.current == self._active:
                self._is_stale = True
                return self._measure()
            self.stage = Stage.SWITCHING
            return SwitchPreset(self.current)
        return self._end() if self._active == self.origin else self._return()

    def _measure(self) -> None:
        self.stage, self._warm_up = Stage.MEASURING, WARM_UP

    def _return(self) -> AnyCommand:
        self.stage, self.current = Stage.RETURNING, self.origin
        return SwitchPreset(self.origin)

    def _end(self, why: str | None = None) -> None:
        self.ended_by = why or self.ended_by
        self.stage = Stage.OVER

    def _take(self, seconds: list[float], is_quiet: bool) -> AnyCommand | None:
        """Times of steps, as far as they ran alone."""
        if self._is_stale:
            self._warm_up, self._is_stale = WARM_UP, not is_quiet
            return None
        skipped = min(self._warm_up, len(seconds))
        self._warm_up -= skipped
        taken = self._seconds.setdefault(self.current or "", [])
        taken += seconds[skipped:][: self.steps - len(taken)]
        return self._next() if len(taken) >= self.steps else None

    def _after_switch(self, event: Switched | SwitchFailed | SwitchCancelled) -> AnyCommand | None:
        if self.stage is Stage.RETURNING:
            return self._after_return(event)
        match event:
            case Switched() if event.to_preset == self.current:
                self._carry_memory(event)
                return self._measure()
            case SwitchFailed() if event.to_preset == self.current:
                self.problems[event.to_preset] = event.problems
                self._seconds.pop(event.to_preset, None)
                return self._next()
            case Switched():
                return self._end(f"a viewer switched the run to {event.to_preset}")
            case SwitchCancelled() if event.to_preset == self.current:
                return self._end(f"a viewer took back the switch to {event.to_preset}")
            case _:
                return None

    def _carry_memory(self, event: Switched) -> None:
        """What is in use is told when it changes: until then it is what it was."""
        if event.from_preset in self._bytes:
            self._bytes.setdefault(event.to_preset, self._bytes[event.from_preset])

    def _after_return(self, event: Switched | SwitchFailed | SwitchCancelled) -> None:
        """What was pending when it was asked for may still happen before."""
        if self._active == self.origin:
            self._end()
        elif isinstance(event, SwitchFailed) and event.to_preset == self.origin:
            self._end(f"no way back to {self.origin}: {'; '.join(event.problems)}")
        elif isinstance(event, SwitchCancelled) and event.to_preset == self.origin:
            self._end(f"a viewer took back the switch to {self.origin}")


def worth_comparing(presets: Sequence[PresetInfo]) -> list[str]:
    """Names of those that fit, without those to learn from."""
    return [info.name for info in presets if info.fits and not is_pitfall(info.name)]


def _why_over(event: EngineStarted | EngineStopped | Failed | EngineLost | Disconnected) -> str:
    match event:
        case EngineStarted():
            return "another engine took up the run"
        case EngineStopped():
            return f"the run ended after step {event.step:,}"
        case Failed():
            return "; ".join(event.problems)
        case EngineLost() | Disconnected():
            return event.reason


def in_progress(comparison: Comparison) -> str:
    """`fsdp (2 of 8): 12 of 20 steps`; empty once it is over."""
    name = comparison.current
    match comparison.stage:
        case Stage.SWITCHING:
            return f"{name} ({comparison.place} of {len(comparison.presets)}): switching"
        case Stage.MEASURING:
            told = f"{comparison.done} of {comparison.steps} steps"
            return f"{name} ({comparison.place} of {len(comparison.presets)}): {told}"
        case Stage.RETURNING:
            return f"back to {name}"
        case Stage.OVER:
            return ""
