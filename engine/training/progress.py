"""The progress of a run: its program, its state and its step, and whether it is paused."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from ..checkpoint.saver import Saver
from ..models.task import TrainState
from ..program.program import Program
from ..wire.events import Event, Paused, Resumed
from .step_reports import StepReports


@dataclass
class Progress:
    """All that changes from step to step."""

    program: Program
    state: TrainState
    reports: StepReports
    origin: int
    """The step of the checkpoint that was restored; 0 for a new state."""
    commands_at: int
    """The step before which process 0 next broadcasts commands."""
    eval_loss: float | None = None
    """Held-out loss of the last evaluation since the origin; None before it, and if it was not finite."""
    unread: jax.Array | None = None
    """Digests of what each device holds, on their way to the host; None if no comparison is under way."""
    unread_at: int = 0
    """The step after which they were begun."""
    previous: Program | None = None
    """The program before the last switch, until a step of the new one is done; else None."""

    def replace_with(self, restored: "Progress") -> None:
        """Replaces everything with a restored checkpoint's progress, so that no old array stays alive."""
        vars(self).update(vars(restored))

    @property
    def done(self) -> int:
        """Steps whose loss has been read."""
        return self.reports.done

    @property
    def begun(self) -> int:
        """Steps dispatched."""
        return self.reports.begun

    @property
    def is_state_gone(self) -> bool:
        """Whether a failed step or transfer has deleted arrays of the state."""
        return any(leaf.is_deleted() for leaf in jax.tree.leaves(self.state))

    @property
    def is_worth_saving(self) -> bool:
        """Whether steps were trained, in this process or before, and the last loss is finite. A restored state counts
        as well: its checkpoint may have been set aside since."""
        return self.done > 0 and self.reports.is_finite

    def save(self, saver: Saver) -> None:
        """Waits for the step in flight and saves a checkpoint; the time this takes counts for no step."""
        self.reports.flush()
        saver.save(self.state, self.program, self.done, self.reports.recent_loss, self.eval_loss)
        self.reports.restart_clock()


class Pausing:
    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self.is_paused = False
        self._single_steps = 0

    @property
    def runs_next_step(self) -> bool:
        return not self.is_paused or self._single_steps > 0

    def pause(self, at: Progress, problem: str | None = None) -> None:
        """Waits for the step in flight, then pauses; `problem` says why if no viewer requested it. Single steps that
        were requested before are dropped."""
        at.reports.flush()
        self.is_paused, self._single_steps = True, 0
        self._publish(Paused(step=at.done, problem=problem))

    def resume(self, at: Progress) -> None:
        self.is_paused, self._single_steps = False, 0
        at.reports.restart_clock()
        self._publish(Resumed(step=at.done))

    def step_once(self, at: Progress) -> None:
        if not self.is_paused:
            self.pause(at)
        self._single_steps += 1

    def begin_step(self, at: Progress) -> None:
        """Counts a single step down; the time since the previous one is not part of it."""
        if self.is_paused:
            self._single_steps -= 1
            at.reports.restart_clock()
