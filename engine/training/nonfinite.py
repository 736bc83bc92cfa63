"""Explains a step whose loss or gradient is not finite: repeats it from the state before, and finds where it begins."""

import time

import jax

from ..base import formatting
from ..base.advice import problems_in
from ..distributed.outcomes import Stranded
from ..program.first_nonfinite import explain
from ..wire.events import Explaining, NonfiniteExplained
from .inputs import DeviceBatches
from .progress import Progress
from .switcher import Restorer
from .tools import Tools

MOST_REPEATED = 120.0
"""Seconds of steps that are repeated at most."""


class NonfiniteExplainer:
    """Goes back to the newest checkpoint, or to the initial state, and trains up to the step again: steps are the same
    each time. All processes do the same."""

    def __init__(self, tools: Tools, restorer: Restorer, batches: DeviceBatches) -> None:
        self.tools, self._restorer, self._batches = tools, restorer, batches
        self._last: int | None = None
        """The step that was explained last: if it is not finite again, the run was resumed nevertheless."""

    def explain(self, at: Progress) -> str | None:
        """Explains the first step that was not finite. Returns why the run pauses; None if that is not known. With an
        explanation, the run is as before that step."""
        at.reports.flush()
        step, began = at.reports.nonfinite_step, time.perf_counter()
        assert step
        if step == self._last:
            return None
        self._last = step
        self.tools.saver.finish()
        kept, broadcast = self.tools.saver.kept, self.tools.cluster.broadcast  # process 0 alone waits until all is kept
        back = broadcast(lambda: max((each.step for each in kept() if each.step < step), default=0), int)
        seconds = (step - 1 - back) * at.reports.step_seconds
        if not back and at.origin:
            problem = "the checkpoint from which the run was resumed is gone"
        elif broadcast(lambda: seconds > MOST_REPEATED, bool):
            again = f"it takes {formatting.seconds(seconds)} to repeat {formatting.counted(step - 1 - back, 'step')}"
            problem = f"{again}: save more often, with --checkpoint-every"
        else:
            return self._explained(at, step, back, began)
        self.tools.publish(NonfiniteExplained(step=step, origin=None, problem=problem))
        return None

    def _explained(self, at: Progress, step: int, back: int, began: float) -> str | None:
        self.tools.publish(Explaining(step=step, from_step=back))
        origin, problem = None, None
        try:
            self._repeat(at, step - 1, back)
            origin = explain(at.program.placement, at.state, self._batch(at))
            if origin is None:
                problem = "the repeated step is finite: a device may be faulty: try --check-devices"
        except Stranded:  # the others wait for this process, which a pause would not end
            raise
        except Exception as error:  # the run pauses without it
            problem = "; ".join(problems_in(error))
        seconds = round(time.perf_counter() - began, 3)
        self.tools.publish(NonfiniteExplained(step=step, origin=origin, problem=problem, seconds=seconds))
        if at.done != step - 1:
            return None
        what = "the gradient" if origin and origin.what != "loss" else "the loss"
        why = f", first in {origin.line}" if origin else ""
        again = "resume it with a smaller learning_rate or --on-nonfinite skip"
        return f"{what} of step {step:,} is not finite{why}: the run is as before that step: save it, and {again}"

    def _repeat(self, at: Progress, done: int, back: int) -> None:
        """Restores the checkpoint of `back` and trains until `done` steps are done."""
        program = at.program
        if back:
            at.replace_with(self._restorer.restore(back, program))
        else:
            for leaf in jax.tree.leaves(at.state):
                leaf.delete()
            at.replace_with(self._restorer.first(program, None))
        while at.begun < done:
            at.state, scalars = program.step(at.state, self._batch(at))
            at.reports.add(scalars, 0.0)
        at.reports.flush()
        at.reports.new_spike()  # known already

    def _batch(self, at: Progress) -> object:
        return self._batches.batch(at.begun, at.program)
