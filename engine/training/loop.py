"""The training loop: steps, and between two steps the commands. It waits for no viewer and for no metric."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import jax

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..checkpoint.manifest import Manifest
from ..checkpoint.saver import Saver
from ..distributed.cluster import Cluster
from ..distributed.outcomes import UNSUCCESSFUL, Damaged, Failure, Stranded
from ..models.task import TrainState
from ..models.user_batches import OwnBatches
from ..program.compiler import Compiler
from ..program.memory import measure
from ..program.program import Program
from ..spec.config import RunConfig
from ..wire.commands import (
    AddPreset,
    AnyCommand,
    InspectPreset,
    Pause,
    PreparePreset,
    ProfileSteps,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from ..wire.events import (
    CheckpointFailed,
    Event,
    Paused,
    PresetAdded,
    RestoreFailed,
    Resumed,
    SwitchCancelled,
    SwitchFailed,
    TrainingStarted,
)
from ..wire.inbox import Inbox
from .data import Batches
from .feed import Feed
from .orders import Order, Orders, ReadPreset, SwitchNow
from .preparations import Pending, Preparations
from .profiler import WARM_UP, Profiler
from .progress import Progress
from .step_reports import StepReports
from .switcher import Switcher


class Loop:
    """Owns the state. All of it runs in one thread; `inbox` is how others reach it."""

    at: Progress
    """Once the run has begun."""

    def __init__(
        self,
        config: RunConfig,
        batches: Batches | OwnBatches,
        compiler: Compiler,
        saver: Saver,
        profiler: Profiler,
        publish: Callable[[Event], None],
        inbox: Inbox,
        cluster: Cluster,
    ) -> None:
        self._config = config
        self._feed = Feed(batches, cluster.count)
        self._compiler = compiler
        self._saver = saver
        self._profiler = profiler
        self._publish = publish
        self._inbox = inbox
        self._cluster = cluster
        self._preparations = Preparations(compiler, config.switches, cluster, publish, inbox.wake)
        self._switcher = Switcher(config, compiler, saver, cluster, publish)
        self._reports = partial(StepReports, publish, partial(measure, compiler.devices), cluster)
        self._paused = False
        self._single_steps = 0
        """To be made while paused."""
        self._stopping = False

    def run(self, origin: Manifest | None, profile: int | None = None) -> int:
        """Trains until the last step or until it is told to stop. `origin`: the checkpoint to go on from, whose files
        are good. `profile`: steps to trace once the first ones are done. Returns the number of steps done."""
        done = origin.step if origin else 0
        if self.begin(origin):
            if profile is not None:
                self._profiler.ask(self.at.origin + WARM_UP, profile)
            while not self.is_over:
                self.turn()
            done = self.end()
        self._cluster.close()
        self._compiler.close()
        return done

    def begin(self, origin: Manifest | None) -> bool:
        """False where the run was ended meanwhile."""
        new_state = self._compiler.initial_state(self._config.preset) if origin is None else None
        first = self._preparations.first(self._config.preset)
        if not self._waited_for(first):
            return False
        program = self._cluster.together(first.result)
        self._preparations.describe(program)
        self._switcher.refuse_shortage(program)
        self.at = self._first(program, origin, new_state)
        self._publish(TrainingStarted(preset=program.name, step=self.at.done))
        self._preparations.look_ahead(program)
        self.at.reports.restart_clock()
        return True

    def turn(self) -> None:
        """Obeys what is due, and makes a step unless it is paused."""
        if self.at.begun >= self.at.agree_at or self._paused:
            self._obey()
        self._preparations.tell()
        self._preparations.compile_likely(self.at.program, self._has_core_to_spare)
        if scheduled := self._preparations.take_scheduled(self.at.begun, self.at.program):
            self._switch(scheduled)
            self._preparations.look_ahead(self.at.program)
        self._saver.tell()
        if not self.is_over and (self._single_steps or not self._paused):
            self._advance()

    def end(self) -> int:
        """Saves what was reached. Returns the number of steps done."""
        self.at.reports.settle()
        self._profiler.end(self.at.done)
        if self.at.reports.has_blown_up():
            self._publish(CheckpointFailed(step=self.at.done, problems=[self._what_to_do_about_loss()]))
        elif self.at.is_worth_saving and self._config.checkpoints.at_end:
            self.at.save(self._saver)
        self._saver.finish()
        return self.at.done

    @property
    def is_over(self) -> bool:
        return self._stopping or self.at.begun == self._config.steps

    def _waited_for(self, compiled: "Future[Any]") -> bool:
        """False where the run is ended meanwhile: a compilation cannot be interrupted, but it need not be awaited."""
        self._stopping = self._stopping or self._cluster.agree(
            lambda: self._inbox.is_stopped_before(compiled.done, self._preparations.tell), bool
        )
        if not self._stopping:
            wait([compiled])  # of another process it may take a little longer
        return not self._stopping

    def _first(
        self, program: Program, origin: Manifest | None, new_state: Future[Callable[[], TrainState]] | None
    ) -> Progress:
        """Where to begin: at the checkpoint, at an older one where that turns out damaged, or with a new state."""
        while origin is not None:
            try:
                return self._restored(origin.step, program)
            except Damaged:
                origin = self._saver.newest()
        new_state = new_state or self._compiler.initial_state(self._config.preset)
        return self._begun_at(0, program, new_state.result()())

    def _restored(self, step: int, program: Program) -> Progress:
        """Raises Damaged, Invalid and Failure."""
        state, receipt = self._saver.load(step, program)
        self._publish(receipt)
        self._saver.tell_kept()
        return self._begun_at(step, program, state)

    def _begun_at(self, step: int, program: Program, state: TrainState) -> Progress:
        return Progress(program, state, self._reports(step), origin=step, agree_at=step)

    def _advance(self) -> None:
        if self._paused:
            self._single_steps -= 1
            self.at.reports.restart_clock()
        try:
            is_traced = self._step()
        except Invalid as error:  # a user's batch: nothing of the step was done yet
            if self._cluster.count > 1:
                raise Stranded(*error.problems) from error
            self._pause("; ".join(error.problems))
            return
        except jax.errors.JaxRuntimeError as error:
            self._take_back_switch(error)
            return
        if is_traced:
            self._profiler.end(self.at.done)
            self.at.reports.restart_clock()
        if self.at.reports.has_blown_up():
            self._pause(self._what_to_do_about_loss())
        elif self._saver.is_due(self.at.begun):
            self.at.save(self._saver)

    def _step(self) -> bool:
        """Dispatches one step; the loss that is read meanwhile is that of the step before. Waits for its own where that
        is needed next, and where it is the first under a preset: if that fails, the preset before goes on. True where
        it is the last one of a trace."""
        at, number = self.at, self.at.begun
        self._profiler.begin(number)
        with self._profiler.named(number):
            began = time.perf_counter()
            batch = self._feed.batch(number, at.program)
            waited = 0.0 if at.reports.is_busy else time.perf_counter() - began
            at.state, loss = at.program.step(at.state, batch)
            done = at.done
            at.reports.add(loss, waited)
        is_traced = self._profiler.is_over(at.begun)
        if self._paused or at.before or is_traced or self._saver.is_due(at.begun):
            at.reports.settle()
            at.before = None
        if done == at.origin < at.done:
            self._compiler.compile_questions(at.program)  # not before: the first step was waited for
        return is_traced

    def _take_back_switch(self, error: Exception) -> None:
        """Where the first step under a preset fails, for want of memory say, the one before goes on: with the state
        that was moved if it is still there, else with the newest checkpoint. Raises `error` where nothing helps."""
        before, failed = self.at.before, self.at.program
        if before is None or self._cluster.count > 1:  # another process may not have failed
            raise error
        try:
            if self.at.is_state_gone or self.at.begun > self.at.done:
                raise Failure("the step has taken the state")
            self._switcher.take_back(self.at)
        except Failure:
            newest = self._saver.newest()
            if newest is None:
                raise error from None
            self.at = self._restored(newest.step, before)
        self._tell_switch_failed(failed.name, problems_in(error))

    def _has_core_to_spare(self) -> bool:
        """A compilation takes nothing from the steps: none are made, or a core was free in the last minute."""
        return self._paused or os.getloadavg()[0] + 1 <= (os.cpu_count() or 1)

    def _what_to_do_about_loss(self) -> str:
        kept = self._saver.kept()
        back = f"go back to the checkpoint of step {kept[-1].step}, or resume" if kept else "resume, or begin anew"
        return f"the loss is not finite: {back}, with a smaller learning_rate if it happens again"

    def _obey(self) -> None:
        """Does what process 0 decides, in every process before the same step."""
        agreed = self._cluster.agree(self._orders, Orders)
        self.at.agree_at = self.at.begun + agreed.stride
        for order in agreed.orders:
            if not self._stopping:
                self._handle(order)

    def _orders(self) -> Orders:
        """The commands whose turn it is, and what is due; while paused, waits for one."""
        commands = self._inbox.take(block=self._paused and not self._single_steps)
        orders: list[Order] = [self._shared(command) for command in commands]
        if preset := self._preparations.ready():
            orders.append(SwitchNow(preset))
        if self._saver.is_overdue():
            orders.append(SaveCheckpoint())
        return Orders(orders, self._cluster.stride(self.at.reports.step_seconds))

    def _shared(self, command: AnyCommand) -> Order:
        """As all processes can do it."""
        if isinstance(command, AddPreset) and self._cluster.count > 1:
            return ReadPreset(command.preset, self._saver.share_preset(command.preset, command.text))
        return command

    def _handle(self, order: Order) -> None:
        match order:
            case SwitchNow(preset):
                if asked := self._preparations.take_asked(preset):
                    self._switch(asked)
            case SwitchPreset(preset):
                self._preparations.ask(preset, self.at.program)
            case AddPreset(preset, text):
                self._add(preset, lambda: text)
            case ReadPreset(preset, sha256):
                self._add(preset, lambda: self._saver.shared_preset(preset, sha256))
            case PreparePreset(preset):
                self._preparations.expect(preset)
                self._preparations.compile_likely(self.at.program, self._has_core_to_spare)
            case Pause() if not self._paused:
                self._pause()
            case Resume() if self._paused:
                self._paused, self._single_steps = False, 0
                self.at.reports.restart_clock()
                self._publish(Resumed(step=self.at.done))
            case StepOnce():
                if not self._paused:
                    self._pause()
                self._single_steps += 1
            case InspectPreset(preset) if self._cluster.process == 0:
                self._preparations.look_into(preset)
            case SaveCheckpoint():
                self.at.save(self._saver)
            case ProfileSteps(steps):
                self._profiler.ask(self.at.begun, steps)
            case RestoreCheckpoint(step):
                self._go_back(step)
            case Stop():
                self._stopping = True
            case _:
                pass

    def _add(self, preset: str, text: Callable[[], str]) -> None:
        """A preset that was made in this run, and the switch to it."""
        try:
            info = self._cluster.together(lambda: self._compiler.add(preset, text()))
        except UNSUCCESSFUL as error:
            self._tell_switch_failed(preset, error.problems)
        else:
            self._publish(PresetAdded(preset=info))
            self._preparations.ask(preset, self.at.program)

    def _pause(self, problem: str | None = None) -> None:
        self.at.reports.settle()
        self._paused = True
        self._publish(Paused(step=self.at.done, problem=problem))

    def _go_back(self, step: int) -> None:
        """To a checkpoint. Whatever fails, the state is the one from before."""
        self.at.reports.settle()
        self._profiler.end(self.at.done)
        try:
            self.at = self._restored(step, self.at.program)
        except UNSUCCESSFUL as error:
            self._publish(RestoreFailed(step=step, problems=list(error.problems)))

    def _switch(self, pending: Pending) -> None:
        """Waits for the program, if it is scheduled for now; then moves the state. Whatever fails, the old program goes
        on with the old state."""
        self.at.reports.settle()
        if not self._waited_for(pending.ready):
            return
        try:
            ready = self._cluster.together(lambda: self._preparations.finished(pending))
            if ready.program is self.at.program:
                self._publish(SwitchCancelled(to_preset=pending.preset))
            else:
                self._switcher.switch(self.at, ready)
        except UNSUCCESSFUL as error:
            if self.at.is_state_gone and (saved := self._saver.newest()):
                self.at = self._restored(saved.step, self.at.program)
            self._tell_switch_failed(pending.preset, error.problems)
        self.at.reports.restart_clock()

    def _tell_switch_failed(self, preset: str, problems: "list[str] | tuple[str, ...]") -> None:
        training = self.at.program.name
        self._publish(SwitchFailed(to_preset=preset, preset=training, step=self.at.done, problems=list(problems)))
