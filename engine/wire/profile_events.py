"""Events of profiles: where the time of a step goes."""

import shlex

from ..base import formatting
from .event import Event, Level
from .step_breakdown import PartTime, StepBreakdown

MAX_PARTS = 4


class Profiling(Event, frozen=True):
    """Profiling of the next `steps` steps begins."""

    step: int
    """Number of steps completed before."""
    steps: int
    """Number of steps to profile."""

    @property
    def line(self) -> str:
        return f"tracing {formatting.counted(self.steps, 'step')} after step {self.step:,}"


class ProfileWriting(Event, frozen=True):
    """The steps are profiled. Training is paused while the trace is written, which may take longer than the steps."""

    step: int
    """Number of completed steps."""
    steps: int
    """Number of profiled steps."""

    @property
    def line(self) -> str:
        return f"writing the trace of {formatting.counted(self.steps, 'step')}"


class Profiled(Event, frozen=True):
    """The trace of the last `steps` steps up to `step` is written."""

    step: int
    """The last profiled step."""
    steps: int
    """Number of profiled steps."""
    directory: str
    """Directory for `xprof --logdir`; it may contain earlier traces."""
    preset: str
    """The preset of the profiled steps."""
    breakdown: StepBreakdown | None = None
    """Where the time of a step went, on all devices; null if a trace cannot be read."""
    problem: str | None = None
    """Why there is no breakdown; null if there is one."""

    @property
    def title(self) -> str:
        first = self.step - self.steps + 1
        return f"profile of steps {first:,} to {self.step:,} written"

    @property
    def opened_by(self) -> str:
        return f"`pip install xprof`, then `xprof --port 6006 --logdir {shlex.quote(self.directory)}`"

    @property
    def line(self) -> str:
        problem = f", but not read: {self.problem}" if self.problem else ""
        return f"{self.title}{problem}; to open it in xprof: {self.opened_by}"


class ProfileFailed(Event, frozen=True):
    """Profiling failed. Training continues."""

    LEVEL = Level.ERROR
    TOPIC = "profile"

    step: int
    """Number of completed steps."""
    problems: list[str]
    """The problems, one line each."""

    @property
    def line(self) -> str:
        return f"no profile at step {self.step:,}: {'; '.join(self.problems)}"


class PartsMeasured(Event, frozen=True):
    """Where the time of a step went: of each profile, and from time to time because of `--profile-every`."""

    step: int
    """The last of the measured steps."""
    preset: str
    """Their preset."""
    step_seconds: float | None
    """Seconds per step; null if the trace cannot be read."""
    parts: list[PartTime]
    """Parts of the step, which add up to it; empty if the trace cannot be read."""
    pause_seconds: float
    """Seconds that training paused for this."""
    problem: str | None = None
    """Why the trace cannot be read; null if it was."""

    @property
    def line(self) -> str:
        if self.problem:
            return f"no parts of step {self.step:,}: {self.problem}"
        largest = sorted(self.parts, key=lambda part: -part.share)[:MAX_PARTS]
        parts = ", ".join(f"{part.name} {formatting.percent(part.share)}" for part in largest)
        paused = f"paused {formatting.seconds(self.pause_seconds)} to measure"
        return f"step {self.step:,} of {formatting.seconds(self.step_seconds or 0.0)}: {parts}; {paused}"
