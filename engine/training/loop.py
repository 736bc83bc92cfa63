"""The training loop: one step after the other, never waiting for a viewer or a metric."""

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import jax

from ..base.advice import problems_in
from ..base.output import note_traceback
from ..base.user_error import UserError
from ..checkpoint.manifest import Manifest
from ..data.batches import Batches
from ..distributed.outcomes import Stranded, WrongDevices
from ..models.user_batches import UserBatches
from ..profiling.planes import INPUT
from ..wire.events import CheckpointFailed, Evaluated, TrainingStarted
from .inputs import DeviceBatches
from .profiler import WARM_UP
from .progress import Progress
from .step_boundary import StepBoundary
from .tools import Tools


@dataclass(frozen=True)
class Evaluator:
    """Computes the mean loss of the same held-out batches each time, in all processes before the same step."""

    tools: Tools
    held_out: Batches | None

    def is_due(self, step: int) -> bool:
        """Every so many steps, and after the run's last one."""
        config = self.tools.config.evaluation
        return config is not None and (step % config.every_steps == 0 or step == self.tools.config.steps)

    def evaluate(self, at: Progress) -> None:
        """Waits for the step in flight, then evaluates; the time this takes counts for no step. Changes no state.
        Raises UserError if a held-out batch cannot be read."""
        config = self.tools.config.evaluation
        assert config and self.held_out
        at.reports.flush()
        began, count = time.perf_counter(), min(config.batches, self.held_out.full_batches)
        loss = float(f"{math.fsum(self._losses(at, self.held_out, count)) / count:.9g}")  # all digits of a float32
        at.eval_loss = loss if math.isfinite(loss) else None
        self.tools.publish(
            Evaluated(
                step=at.done,
                loss=at.eval_loss,
                batches=count,
                seconds=time.perf_counter() - began,
                nonfinite=["loss"] if at.eval_loss is None else [],
            )
        )
        at.reports.restart_clock()

    def _losses(self, at: Progress, held_out: Batches, count: int) -> Iterator[float]:
        """Yields the loss of each batch; the next one is read while the devices compute."""
        assert at.program.held_out_loss
        feed, running = DeviceBatches(held_out, self.tools.cluster.count), None
        for number in range(count):
            batch = feed.batch(number, at.program)
            if running is not None:
                yield float(running)
            running = at.program.held_out_loss(at.state, batch)
        assert running is not None
        yield float(running)


class Loop:
    """Owns the training state and runs in one thread; other threads reach it through `inbox`."""

    at: Progress
    """The run's progress; set by `begin`."""

    def __init__(self, tools: Tools, batches: Batches | UserBatches, held_out: Batches | None = None) -> None:
        self.tools = tools
        self._batches = DeviceBatches(batches, tools.cluster.count)
        self._evaluator = Evaluator(tools, held_out)
        self.boundary = StepBoundary(tools, self._batches)

    def run(self, origin: Manifest | None, profile: int | None = None) -> int:
        """Trains until the last step, or until a command stops it. Returns the number of steps done. `origin`: the
        checkpoint to resume from, whose files are verified. `profile`: steps to trace after the warm-up."""
        done = origin.step if origin else 0
        if self.begin(origin):
            if profile is not None:
                self.tools.profiler.request(self.at.origin + WARM_UP, profile)
            try:
                while not self.is_over:
                    self.advance()
            except BaseException as error:
                self._save_after(error)
                raise
            done = self.end()
        self.tools.cluster.close()
        self.tools.compiler.close()
        return done

    def begin(self, origin: Manifest | None) -> bool:
        """Compiles the first program and prepares the state. Returns False if the run was stopped in the meantime."""
        new_state = self.tools.compiler.initial_state(self.tools.config.preset) if origin is None else None
        first = self.boundary.compiles.first(self.tools.config.preset)
        if self.boundary.is_stopped_before(first.ready):
            return False
        program = self.tools.cluster.run_on_all(lambda: self.boundary.compiles.finished(first)).program
        self.boundary.switcher.check_memory(program)
        self.at = self.boundary.restorer.first(program, origin, new_state)
        self.tools.publish(TrainingStarted(preset=program.name, step=self.at.done))
        self.boundary.compiles.compile_scheduled(program)
        self.at.reports.restart_clock()
        return True

    def advance(self) -> None:
        """Carries out what is due, then runs one step unless training is paused, which ends a trace."""
        if self.boundary.pausing.is_paused:
            self.tools.profiler.end(self.at)
        self.boundary.cross(self.at)
        if not self.is_over and self.boundary.pausing.runs_next_step:
            self._run_step()

    def end(self) -> int:
        """Saves a last checkpoint if configured and useful. Returns the number of steps done."""
        self.tools.profiler.end(self.at)
        if self.at.reports.became_nonfinite():
            self.tools.publish(CheckpointFailed(step=self.at.done, problems=[self._nonfinite_loss_hint()]))
        elif self.at.is_worth_saving and self.tools.config.checkpoints.at_end and self.boundary.check.passes(self.at):
            self.at.save(self.tools.saver)
        self.tools.saver.close()
        return self.at.done

    def _save_after(self, error: BaseException) -> None:
        """Saves the state before the error, if it is complete and known to be right: in several processes it is not."""
        if self.tools.cluster.count > 1 or isinstance(error, WrongDevices) or self.at.is_state_gone:
            return
        with suppress(BaseException):  # the cause may prevent this, too
            self.end()

    @property
    def is_over(self) -> bool:
        return self.boundary.is_stopping or self.at.begun == self.tools.config.steps

    def _run_step(self) -> None:
        self.boundary.pausing.begin_step(self.at)
        number = self.at.begun
        self.tools.cluster.begun = number + 1
        try:
            is_traced = self._dispatch_step()
        except UserError as error:  # the step was not dispatched
            self._pause_without_batch(error)
            return
        except jax.errors.JaxRuntimeError as error:
            self.boundary.switcher.undo(self.at, error)
            return
        except BaseException as error:  # of the user's code, such as a batch of a type of its own
            if self.at.begun != number or self.at.is_state_gone:
                raise
            note_traceback(error)
            self._pause_without_batch(UserError(*problems_in(error)))
            return
        if is_traced:
            self.tools.profiler.end(self.at)
            self.at.reports.restart_clock()
        if not self.boundary.check.after_step(self.at):
            return
        if self._reacts_to_anomaly():
            return
        if self._evaluator.is_due(self.at.begun):
            try:
                self._evaluator.evaluate(self.at)
            except UserError as error:
                self._pause_without_batch(error)
        if self.tools.saver.is_due(self.at.begun):
            self.at.save(self.tools.saver)
        self.boundary.sampler.sample_if_due(self.at)

    def _reacts_to_anomaly(self) -> bool:
        """Pauses or stops after a loss or gradient that is not finite, or a spike, as the run's configuration says.
        Returns whether it did because of a state that is not finite, which is neither evaluated nor saved."""
        config, spike = self.tools.config.anomalies, self.at.reports.new_spike()
        if is_nonfinite := self.at.reports.became_nonfinite():
            hint = self._nonfinite_loss_hint()
            action, words = config.on_nonfinite, lambda: self.boundary.explainer.explain(self.at) or hint
        elif spike:
            action, words = config.on_spike, lambda: spike.line
        else:
            return False
        if action not in ("pause", "stop"):
            return False
        self.boundary.pausing.pause(self.at, words())
        self.boundary.is_stopping |= action == "stop"
        return is_nonfinite

    def _pause_without_batch(self, error: UserError) -> None:
        """Pauses because a batch cannot be read or made. Raises Stranded if there are several processes."""
        if self.tools.cluster.count > 1:
            raise Stranded(*error.problems) from error
        self.boundary.pausing.pause(self.at, "; ".join(error.problems))

    def _dispatch_step(self) -> bool:
        """Dispatches one step, then reads the loss of the previous one. Returns True if it is the last of a trace.
        Waits for its own loss if that is needed next, and if it is the first step under a preset: if it fails, the
        previous preset continues."""
        at, number = self.at, self.at.begun
        self.tools.profiler.begin(at)
        with self.tools.cluster.step(), jax.profiler.StepTraceAnnotation("train", step_num=number + 1):
            began = time.perf_counter()
            with jax.profiler.TraceAnnotation(INPUT):
                batch = self._batches.batch(number, at.program)
            waited = 0.0 if at.reports.is_busy else time.perf_counter() - began
            at.state, scalars = at.program.step(at.state, batch)
            done = at.done
            at.reports.add(scalars, waited)
        is_traced = self.tools.profiler.is_over(at.begun)
        is_due = self.tools.saver.is_due(at.begun) or self._evaluator.is_due(at.begun)
        is_due |= at.begun == self.tools.config.steps
        if self.boundary.pausing.is_paused or at.previous or is_traced or is_due:
            at.reports.flush()
            at.previous = None
        if done == at.origin < at.done:
            self.tools.compiler.compile_state_functions(at.program)  # not earlier: it would have delayed the first step
        return is_traced

    def _nonfinite_loss_hint(self) -> str:
        kept = self.tools.saver.kept()
        back = f"go back to the checkpoint of step {kept[-1].step}, or resume" if kept else "resume, or start a new run"
        subject = "the loss" if self.at.reports.last_loss is None else "the gradient"
        return (
            f"{subject} is not finite: {back}, with a smaller learning_rate or --on-nonfinite skip if it happens again"
        )
