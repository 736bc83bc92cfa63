"""Creates or restores the state that training starts from or goes back to."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ..checkpoint.manifest import Manifest
from ..distributed.outcomes import UNSUCCESSFUL, Damaged
from ..models.task import TrainState
from ..program.memory import measure
from ..program.program import Program
from ..wire.events import RestoreFailed
from .progress import Progress
from .step_reports import StepReports
from .tools import Tools

NewState = Future[Callable[[], TrainState]]


class Restorer:
    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def first(self, preset: str, program: Program, origin: Manifest | None, new_state: NewState | None) -> Progress:
        """Starts from the checkpoint `origin`, or from an older one if it is damaged; without any, with a new state."""
        while origin is not None:
            try:
                return self.restore(origin.step, program)
            except Damaged:
                origin = self.tools.saver.newest()
        new_state = new_state or self.tools.compiler.initial_state(preset)
        return self._begun_at(0, program, new_state.result()())

    def restore(self, step: int, program: Program) -> Progress:
        """Restores the checkpoint of `step` into the program's layout. Raises Damaged, Invalid and Failure."""
        state, receipt = self.tools.saver.load(step, program)
        self.tools.publish(receipt)
        self.tools.saver.report_kept()
        return self._begun_at(receipt.step, program, state)

    def go_back(self, at: Progress, step: int) -> None:
        """Goes back to the checkpoint of `step`; if that fails, the current state is kept and the failure reported."""
        try:
            at.replace_with(self.restore(step, at.program))
        except UNSUCCESSFUL as error:
            self.tools.publish(RestoreFailed(step=step, problems=list(error.problems)))

    def _begun_at(self, step: int, program: Program, state: TrainState) -> Progress:
        tools = self.tools
        reports = StepReports(tools.publish, partial(measure, tools.compiler.devices), tools.cluster, step)
        return Progress(program, state, reports, origin=step, commands_at=step)
