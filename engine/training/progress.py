"""Where a run stands."""

from dataclasses import dataclass

import jax

from ..checkpoint.saver import Saver
from ..models.task import TrainState
from ..program.program import Program
from .step_reports import StepReports


@dataclass
class Progress:
    """All that changes from step to step. A checkpoint that is restored makes a new one, so nothing of the old one
    outlives it."""

    program: Program
    """The one that trains."""
    state: TrainState
    reports: StepReports
    """Of the steps that have begun and that are done."""
    origin: int
    """The step of the checkpoint that was restored; 0 for a new state."""
    agree_at: int
    """The step before which the processes agree again on what to do."""
    before: Program | None = None
    """The program before the last switch, until a step under the new one is done."""

    @property
    def done(self) -> int:
        return self.reports.done

    @property
    def begun(self) -> int:
        return self.reports.begun

    @property
    def is_state_gone(self) -> bool:
        """A step or a move that failed has taken it apart."""
        return any(leaf.is_deleted() for leaf in jax.tree.leaves(self.state))

    @property
    def is_worth_saving(self) -> bool:
        """Steps were trained, in this process or before it: the checkpoint that was restored may have been set aside
        since. The last loss was finite: another state is nothing to go on from."""
        return self.done > 0 and self.reports.is_finite

    def save(self, saver: Saver) -> None:
        self.reports.settle()
        saver.save(self.state, self.program, self.done, self.reports.recent_loss)
        self.reports.restart_clock()
