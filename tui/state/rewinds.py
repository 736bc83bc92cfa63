"""Which events take a run back to an earlier step, so that later steps run again."""

from collections.abc import Iterable
from itertools import accumulate

from ...engine.wire.events import AnyEvent, Restored, StepsDone, TrainingStarted


def kept_steps(event: AnyEvent) -> int | None:
    """Returns the step after which curves go on, without what they had there; None for an event that changes none."""
    return event.step if isinstance(event, TrainingStarted | Restored) else None


class Rewinds:
    """Finds the rewinds among events, which are given in order."""

    def __init__(self) -> None:
        self.step = 0
        """The last step so far."""

    def add(self, event: AnyEvent) -> int | None:
        """Returns the step after which the event drops steps; None if it drops none. A line of the history may be
        missing: steps that run again drop those that they repeat."""
        before = self.step
        if isinstance(event, StepsDone):
            self.step, kept = event.step, event.step - len(event.losses)
        elif (kept := kept_steps(event)) is not None:
            self.step = min(before, kept)
        return kept if kept is not None and kept < before else None


def limits_of(history: Iterable[list[AnyEvent]]) -> list[int]:
    """Returns for each rewind of a history the last step that it and the later ones keep."""
    rewinds = Rewinds()
    kept = [step for events in history for event in events if (step := rewinds.add(event)) is not None]
    return list(accumulate(reversed(kept), min))[::-1]
