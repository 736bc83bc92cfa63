"""Creates, restores and moves the state of a run: from checkpoints, and live to another preset."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import jax

from ..base.advice import problems_in
from ..base.user_error import UserError
from ..checkpoint.manifest import Manifest
from ..distributed.outcomes import UNSUCCESSFUL, Damaged, Failure
from ..models.task import TrainState
from ..program.compiler import Ready
from ..program.memory import limit, measure, shortage
from ..program.program import Program
from ..program.reshard import bytes_moved, move_state
from ..wire.events import PresetAdded, RestoreFailed, SwitchCancelled, Switched, SwitchFailed, Switching
from .progress import Progress
from .step_reports import StepReports
from .tools import Tools

NewState = Future[Callable[[], TrainState]]


class Restorer:
    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def first(self, program: Program, origin: Manifest | None, new_state: NewState | None = None) -> Progress:
        """Starts from the checkpoint `origin`, or from an older one if it is damaged; without any, with a new state."""
        while origin is not None:
            try:
                return self.restore(origin.step, program)
            except Damaged:
                origin = self.tools.saver.newest()
        new_state = new_state or self.tools.compiler.initial_state(program.name)
        return self._begun_at(0, program, new_state.result()())

    def restore(self, step: int, program: Program) -> Progress:
        """Restores the checkpoint of `step` into the program's layout. Raises Damaged, UserError and Failure."""
        return self._begun_at(step, program, self.tools.saver.load(step, program))

    def go_back(self, at: Progress, step: int) -> None:
        """Goes back to the checkpoint of `step`; if that fails, the current state is kept and the failure reported."""
        try:
            at.replace_with(self.restore(step, at.program))
        except UNSUCCESSFUL as error:
            self.tools.publish(RestoreFailed(step=step, problems=list(error.problems)))

    def _begun_at(self, step: int, program: Program, state: TrainState) -> Progress:
        tools = self.tools
        skips = tools.config.anomalies.on_nonfinite == "skip"
        reports = StepReports(tools.publish, partial(measure, tools.compiler.devices), tools.cluster, step, skips)
        return Progress(program, state, reports, origin=step, commands_at=step)


class Switcher:
    """Moves the state from one program to another, and rolls back if that fails."""

    def __init__(self, tools: Tools, restorer: Restorer) -> None:
        self.tools = tools
        self._restorer = restorer

    def switch(self, at: Progress, preset: str, finished: Callable[[], Ready]) -> None:
        """Switches to the program of a finished compilation; no step is in flight. If it fails, the old program
        continues with the old state, or with the newest checkpoint if that state is lost."""
        try:
            ready = self.tools.cluster.run_on_all(finished)
            if ready.program is at.program:
                self.tools.publish(SwitchCancelled(to_preset=preset))
            else:
                self._move(at, ready)
        except UNSUCCESSFUL as error:
            if at.is_state_gone and (saved := self.tools.saver.newest()):
                at.replace_with(self._restorer.restore(saved.step, at.program))
            self._report_failure(at, preset, error.problems)

    def add(self, at: Progress, preset: str, text: str) -> bool:
        """Adds a preset from its TOML in every process, and returns whether that succeeded."""
        try:
            info = self.tools.cluster.run_on_all(lambda: self.tools.compiler.add(preset, text))
        except UNSUCCESSFUL as error:
            self._report_failure(at, preset, error.problems)
            return False
        self.tools.publish(PresetAdded(preset=info))
        return True

    def _report_failure(self, at: Progress, preset: str, problems: Sequence[str]) -> None:
        self.tools.publish(
            SwitchFailed(to_preset=preset, preset=at.program.name, step=at.done, problems=list(problems))
        )

    def _move(self, at: Progress, ready: Ready) -> None:
        """Moves the state to the new program. Raises UserError and Failure and leaves `at` unchanged. With
        `--low-memory` the state of `at` may be lost then."""
        source, target = at.program, ready.program
        self.check_memory(target)
        self.tools.publish(Switching(to_preset=target.name, step=at.done))
        began = time.perf_counter()
        if self.tools.config.low_memory:
            self._save_or_refuse(at)
        moved = self.tools.cluster.run_on_all(
            lambda: move_state(at.state, source, target, self.tools.compiler.transfers, self.tools.config.low_memory),
            has_collectives=True,
        )
        at.state, at.program, at.previous = moved, target, source
        self.tools.publish(
            Switched(
                from_preset=source.name,
                to_preset=target.name,
                step=at.done,
                arrays=len(jax.tree.leaves(moved)),
                bytes_moved=bytes_moved(moved, source.placement.state_shardings, target.placement.state_shardings),
                stall_seconds=time.perf_counter() - began,
                compile_seconds=ready.compile_seconds,
                digests_equal=True,
                loss_before=at.reports.last_loss,
            )
        )

    def undo(self, at: Progress, error: Exception) -> None:
        """Rolls back to the previous preset if the first step under a new one fails, e.g. out of memory. It continues
        with the moved state if that still exists, else with the newest checkpoint. Raises `error` if it cannot roll
        back."""
        previous, failed = at.previous, at.program
        if previous is None or self.tools.cluster.count > 1:  # another process may not have failed
            raise error
        try:
            self._move_back(at, previous)
        except Failure:
            newest = self.tools.saver.newest()
            if newest is None:
                raise error from None
            at.replace_with(self._restorer.restore(newest.step, previous))
        self._report_failure(at, failed.name, problems_in(error))

    def _move_back(self, at: Progress, previous: Program) -> None:
        """Moves the state back to the previous program. Raises Failure if the step has donated it."""
        if at.is_state_gone or at.begun > at.done:
            raise Failure("the step has taken the state")
        shardings = previous.placement.state_shardings
        at.state = self.tools.cluster.run_on_all(
            lambda: self.tools.compiler.transfers.move(at.state, shardings, self.tools.config.low_memory)
        )
        at.program, at.previous, at.commands_at = previous, None, at.begun

    def check_memory(self, program: Program) -> None:
        """Raises UserError if the devices of any process have less memory than the program needs."""

        def check() -> None:
            available = limit(self.tools.compiler.devices, self.tools.config.device_memory)
            if problem := shortage(program.description, available):
                raise UserError(problem)

        self.tools.cluster.run_on_all(check)

    def _save_or_refuse(self, at: Progress) -> None:
        """Saves before the transfer frees the state's arrays. Raises UserError if the save fails."""
        at.save(self.tools.saver)
        saved = self.tools.saver.newest()
        if saved is None or saved.step != at.done:
            raise UserError(
                f"step {at.done} could not be saved, which a switch with --low-memory needs: "
                "fix the cause, then switch again"
            )
