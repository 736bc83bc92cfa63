"""The training loop: one step after the other, never waiting for a viewer or a metric."""

import time
from collections.abc import Callable
from functools import partial

import jax

from ..base.invalid import Invalid
from ..checkpoint.manifest import Manifest
from ..checkpoint.saver import Saver
from ..data.batches import Batches
from ..distributed.cluster import Cluster
from ..distributed.outcomes import Stranded
from ..models.user_batches import UserBatches
from ..program.compiler import Compiler
from ..program.memory import measure
from ..spec.config import RunConfig
from ..wire.events import CheckpointFailed, Event, TrainingStarted
from ..wire.inbox import Inbox
from .background_compiles import BackgroundCompiles
from .device_check import DeviceCheck
from .evaluator import Evaluator
from .feed import Feed
from .pausing import Pausing
from .profiler import WARM_UP, Profiler
from .progress import Progress
from .restorer import Restorer
from .sampling import TextSampler
from .step_boundary import StepBoundary
from .step_reports import StepReports
from .stopping import Stopping
from .switcher import Switcher


class Loop:
    """Owns the training state and runs in one thread; other threads reach it through `inbox`."""

    at: Progress
    """The run's progress; set by `begin`."""

    def __init__(
        self,
        config: RunConfig,
        batches: Batches | UserBatches,
        compiler: Compiler,
        saver: Saver,
        profiler: Profiler,
        publish: Callable[[Event], None],
        inbox: Inbox,
        cluster: Cluster,
        held_out: Batches | None = None,
        is_supervised: bool = False,
    ) -> None:
        self._config = config
        self._feed = Feed(batches, cluster.count)
        self._evaluator = Evaluator(config.evaluation, held_out, cluster.count, publish)
        self._compiler = compiler
        self._saver = saver
        self._profiler = profiler
        self._publish = publish
        self._cluster = cluster
        self._compiles = BackgroundCompiles(compiler, config.switches, cluster, publish, inbox.wake)
        reports = partial(StepReports, publish, partial(measure, compiler.devices), cluster)
        self._restorer = Restorer(compiler, saver, reports, publish)
        self._switcher = Switcher(config, compiler, saver, self._restorer, cluster, publish)
        self._pausing = Pausing(publish)
        self._stopping = Stopping(cluster, inbox, self._compiles.report)
        self._check = DeviceCheck(
            config.check_devices,
            config.steps,
            compiler.task,
            cluster,
            saver,
            self._restorer,
            self._pausing,
            profiler,
            publish,
            is_supervised,
        )
        self._boundary = StepBoundary(
            inbox,
            cluster,
            self._compiles,
            saver,
            self._restorer,
            self._switcher,
            profiler,
            self._pausing,
            self._stopping,
            self._check,
            TextSampler(config, compiler, publish),
        )

    def run(self, origin: Manifest | None, profile: int | None = None) -> int:
        """Trains until the last step, or until a command stops it. Returns the number of steps done.

        `origin`: the checkpoint to resume from, whose files are verified. `profile`: steps to trace after the warm-up.
        """
        done = origin.step if origin else 0
        if self.begin(origin):
            if profile is not None:
                self._profiler.request(self.at.origin + WARM_UP, profile)
            while not self.is_over:
                self.advance()
            done = self.end()
        self._cluster.close()
        self._compiler.close()
        return done

    def begin(self, origin: Manifest | None) -> bool:
        """Compiles the first program and prepares the state. Returns False if the run was stopped in the meantime."""
        new_state = self._compiler.initial_state(self._config.preset) if origin is None else None
        first = self._compiles.first(self._config.preset)
        if self._stopping.is_requested_before(first):
            return False
        program = self._cluster.together(first.result)
        self._compiles.describe(program)
        self._switcher.check_memory(program)
        self.at = self._restorer.first(self._config.preset, program, origin, new_state)
        self._publish(TrainingStarted(preset=program.name, step=self.at.done))
        self._compiles.compile_scheduled(program)
        self.at.reports.restart_clock()
        return True

    def advance(self) -> None:
        """Carries out what is due, then runs one step unless training is paused, which ends a trace."""
        if self._pausing.is_paused:
            self._profiler.end(self.at)
        self._boundary.cross(self.at)
        if not self.is_over and self._pausing.runs_next_step:
            self._run_step()

    def end(self) -> int:
        """Saves a last checkpoint if configured and useful. Returns the number of steps done."""
        self.at.reports.flush()
        self._profiler.end(self.at)
        if self.at.reports.became_nonfinite():
            self._publish(CheckpointFailed(step=self.at.done, problems=[self._nonfinite_loss_hint()]))
        elif self.at.is_worth_saving and self._config.checkpoints.at_end and self._check.passes(self.at):
            self.at.save(self._saver)
        self._saver.finish()
        return self.at.done

    @property
    def is_over(self) -> bool:
        """Whether the last step has begun, or all processes agreed to stop."""
        return self._stopping.is_agreed or self.at.begun == self._config.steps

    def _run_step(self) -> None:
        self._pausing.begin_step(self.at)
        self._cluster.begun = self.at.begun + 1
        try:
            is_traced = self._dispatch_step()
        except Invalid as error:  # the step was not dispatched
            self._pause_without_batch(error)
            return
        except jax.errors.JaxRuntimeError as error:
            self._switcher.undo(self.at, error)
            return
        if is_traced:
            self._profiler.end(self.at)
            self.at.reports.restart_clock()
        if not self._check.after_step(self.at):
            return
        if self.at.reports.became_nonfinite():
            self._pausing.pause(self.at, self._nonfinite_loss_hint())
            return
        if self._evaluator.is_due(self.at.begun):
            self._evaluate()
        if self._saver.is_due(self.at.begun):
            self.at.save(self._saver)

    def _evaluate(self) -> None:
        try:
            self._evaluator.evaluate(self.at)
        except Invalid as error:
            self._pause_without_batch(error)

    def _pause_without_batch(self, error: Invalid) -> None:
        """Pauses because a batch cannot be read or made. Raises Stranded if there are several processes."""
        if self._cluster.count > 1:
            raise Stranded(*error.problems) from error
        self._pausing.pause(self.at, "; ".join(error.problems))

    def _dispatch_step(self) -> bool:
        """Dispatches one step, then reads the loss of the previous one. Returns True if it is the last of a trace.

        Waits for its own loss if that is needed next, and if it is the first step under a preset: if it fails, the
        previous preset continues.
        """
        at, number = self.at, self.at.begun
        self._profiler.begin(at)
        with self._profiler.named(number):
            began = time.perf_counter()
            with self._profiler.input():
                batch = self._feed.batch(number, at.program)
            waited = 0.0 if at.reports.is_busy else time.perf_counter() - began
            at.state, loss = at.program.step(at.state, batch)
            done = at.done
            at.reports.add(loss, waited)
        is_traced = self._profiler.is_over(at.begun)
        is_due = self._saver.is_due(at.begun) or self._evaluator.is_due(at.begun)
        if self._pausing.is_paused or at.previous or is_traced or is_due:
            at.reports.flush()
            at.previous = None
        if done == at.origin < at.done:
            self._compiler.compile_state_functions(at.program)  # not earlier: it would have delayed the first step
        return is_traced

    def _nonfinite_loss_hint(self) -> str:
        kept = self._saver.kept()
        back = f"go back to the checkpoint of step {kept[-1].step}, or resume" if kept else "resume, or start a new run"
        return f"the loss is not finite: {back}, with a smaller learning_rate if it happens again"
