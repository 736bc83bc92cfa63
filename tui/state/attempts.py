"""The cost of a supervised run's attempts: the time without steps, and the steps that were made again."""

from msgspec import Struct

from ...engine.base import formatting
from ...engine.spec.attempt import Attempt
from ...engine.wire.events import StepsDone


class Recovery(Struct):
    """The start of an attempt after the first."""

    attempt: Attempt
    step: int
    """The last step that was reported before."""
    stopped: float
    """When it was reported, in seconds since the epoch; 0 if there was none."""
    gap_seconds: float | None = None
    """Seconds from that report to the first step of the attempt; None until that is done."""
    repeated: int = 0

    @property
    def words(self) -> str:
        attempt = self.attempt
        left = attempt.remaining and f" ({attempt.remaining})"
        why = f"process {attempt.lost.process} lost: {attempt.lost.why}" if attempt.lost else "a host was taken in"
        cost = "no step yet"
        if self.gap_seconds is not None:
            cost = f"{formatting.seconds(self.gap_seconds)} without steps, {self.repeated:,} made again"
        return f"attempt {attempt.number}{left} after step {self.step:,}: {cost}; {why}"


class Attempts(Struct):
    """All recoveries of a run, oldest first."""

    recoveries: list[Recovery] = []
    """One for each attempt after the first."""
    _step: int = 0
    _reported: float = 0.0
    """When it was, in seconds since the epoch."""

    def begin(self, attempt: Attempt) -> None:
        if attempt.number > 1:
            self.recoveries.append(Recovery(attempt, self._step, self._reported))

    def add_steps(self, first: StepsDone, last: StepsDone) -> None:
        if self.recoveries and self.recoveries[-1].gap_seconds is None:
            recovery, begun = self.recoveries[-1], first.step - len(first.losses)
            began = first.time - sum(first.step_seconds)
            recovery.gap_seconds = max(0.0, began - recovery.stopped) if recovery.stopped else 0.0
            recovery.repeated = max(0, recovery.step - begun)
        self._step, self._reported = last.step, last.time
