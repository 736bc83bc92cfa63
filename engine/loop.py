"""The training loop: steps, and between two steps the commands. It waits for no viewer and for no metric."""

import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache, partial
from typing import Any

import jax
from msgspec import Struct

from .advice import problems_in
from .cluster import Cluster
from .compiler import Compiler, Ready
from .config import Invalid, RunConfig
from .data import Batches
from .inbox import Inbox
from .manifest import Damaged, Manifest
from .memory import limit, measure, shortage
from .preparations import Pending, Preparations
from .profiler import WARM_UP, Profiler
from .program import Program
from .protocol import (
    AddPreset,
    AnyCommand,
    CheckpointFailed,
    Event,
    InspectPreset,
    Pause,
    Paused,
    PreparePreset,
    PresetAdded,
    ProfileSteps,
    RestoreCheckpoint,
    RestoreFailed,
    Resume,
    Resumed,
    SaveCheckpoint,
    StepOnce,
    Stop,
    Switched,
    SwitchFailed,
    Switching,
    SwitchPreset,
    TrainingStarted,
)
from .reshard import bytes_moved, move_state
from .saver import Saver
from .step_reports import StepReports
from .task import TrainState
from .user_model import OwnBatches


class SwitchNow(Struct, frozen=True, tag=True):
    """All is prepared for the switch to `preset` that was asked for."""

    preset: str


class ReadPreset(Struct, frozen=True, tag=True):
    """Take up a preset that process 0 has written where all processes see it: none is taken from the coordinator."""

    preset: str
    sha256: str


Order = AnyCommand | SwitchNow | ReadPreset


class Orders(Struct, frozen=True):
    """What all processes do before the next step."""

    orders: list[Order]
    stride: int
    """Steps until they agree again."""


class Loop:
    """Owns the state. All of it runs in one thread; `inbox` is how others reach it."""

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
        self._batches = batches
        self._compiler = compiler
        self._saver = saver
        self._profiler = profiler
        self._publish = publish
        self._inbox = inbox
        self._cluster = cluster
        self._agree_at = 0
        """The step before which the processes agree again on what to do."""
        self._preparations = Preparations(compiler, config.switches, cluster, publish, inbox.wake)
        self._before: Program | None = None
        """The one before the last switch, until a step under the new one is done."""
        self._paused = False
        self._single_steps = 0
        self._stopping = False
        self._reports = StepReports(publish, partial(measure, compiler.devices), cluster)

    def run(self, origin: Manifest | None, profile: int | None = None) -> int:
        """Trains until the last step or until it is told to stop. `origin`: the checkpoint to go on from, whose files
        are good. `profile`: steps to trace once the first ones are done. Returns the number of steps done."""
        if origin is not None:
            self._reports.go_on_from(origin.step)  # also what is told where the run is ended before it begins
        new_state = self._compiler.initial_state(self._config.preset) if origin is None else None
        if self._compile_first():
            self._take_up(origin, new_state)
            self._publish(TrainingStarted(preset=self._program.name, step=self._reports.done))
            self._preparations.look_ahead(self._program)
            if profile is not None:
                self._profiler.ask(self._begun_at + WARM_UP, profile)
            self._reports.restart_clock()
            while not self._is_over():
                self._between_steps()
                self._advance_if_wanted()
            self._end()
        self._cluster.close()
        self._compiler.close()
        return self._reports.done

    def _compile_first(self) -> bool:
        """False where the run was ended meanwhile."""
        first = self._preparations.first(self._config.preset)
        if not self._waited_for(first):
            return False
        self._program = self._cluster.together(first.result)
        self._preparations.describe(self._program)
        self._cluster.together(lambda: self._refuse_shortage(self._program))
        return True

    def _waited_for(self, compiled: "Future[Any]") -> bool:
        """False where the run is ended meanwhile: a compilation cannot be interrupted, but it need not be awaited."""
        self._stopping = self._stopping or self._cluster.agree(
            lambda: self._inbox.is_stopped_before(compiled.done, self._preparations.tell), bool
        )
        if not self._stopping:
            wait([compiled])  # of another process it may take a little longer
        return not self._stopping

    def _take_up(self, origin: Manifest | None, new_state: Future[Callable[[], TrainState]] | None) -> None:
        """The state to begin with: the checkpoint's, an older one's where that turns out damaged, or a new one."""
        while origin is not None:
            try:
                self._restore(origin.step)
                break
            except Damaged:
                origin = self._saver.newest()
        else:
            new_state = new_state or self._compiler.initial_state(self._config.preset)
            self._state = new_state.result()()
        self._begun_at = self._reports.done

    def _restore(self, step: int) -> None:
        self._state, receipt = self._saver.load(step, self._program)
        self._reports.go_on_from(step)
        self._publish(receipt)
        self._saver.tell_kept()

    def _between_steps(self) -> None:
        if self._reports.begun >= self._agree_at or self._paused:
            self._obey()
        self._preparations.tell()
        self._preparations.compile_likely(self._program, self._has_core_to_spare)
        if scheduled := self._preparations.take_scheduled(self._reports.begun, self._program):
            self._switch(scheduled)
            self._preparations.look_ahead(self._program)
        self._saver.tell()

    def _end(self) -> None:
        """Saves what was reached. A state whose loss was not finite is nothing to go on from."""
        self._reports.settle()
        self._profiler.end(self._reports.done)
        if self._reports.has_blown_up():
            self._publish(CheckpointFailed(step=self._reports.done, problems=[self._what_to_do_about_loss()]))
        elif self._is_worth_saving():
            self._save()
        self._saver.finish()

    def _is_worth_saving(self) -> bool:
        is_new = self._reports.done > self._begun_at and self._reports.last_loss is not None
        return is_new and self._config.checkpoints.at_end

    def _save(self) -> None:
        self._reports.settle()
        self._saver.save(self._state, self._program, self._reports.done, self._reports.recent_loss)
        self._reports.restart_clock()

    def _is_over(self) -> bool:
        return self._stopping or self._reports.begun == self._config.steps

    def _advance_if_wanted(self) -> None:
        if self._is_over() or (self._paused and not self._single_steps):
            return
        if self._paused:
            self._single_steps -= 1
            self._reports.restart_clock()
        self._profiler.begin(self._reports.begun)
        try:
            with self._profiler.named(self._reports.begun):
                self._advance()
            due = self._saver.is_due(self._reports.begun)
            is_traced = self._profiler.is_over(self._reports.begun)
            if self._paused or due or is_traced:
                self._reports.settle()
        except Invalid as error:  # a user's batch: nothing was done yet
            self._pause("; ".join(error.problems))
            return
        except jax.errors.JaxRuntimeError as error:
            self._take_back_switch(error)
            return
        if is_traced:
            self._profiler.end(self._reports.done)
            self._reports.restart_clock()
        if self._reports.has_blown_up():
            self._pause(self._what_to_do_about_loss())
        elif due:
            self._save()

    def _has_core_to_spare(self) -> bool:
        """A compilation takes nothing from the steps: none are made, or a core was free in the last minute."""
        return self._paused or os.getloadavg()[0] + 1 <= (os.cpu_count() or 1)

    def _what_to_do_about_loss(self) -> str:
        kept = self._saver.kept()
        back = f"go back to the checkpoint of step {kept[-1].step}, or resume" if kept else "resume, or begin anew"
        return f"the loss is not finite: {back}, with a smaller learning_rate if it happens again"

    def _take_back_switch(self, error: Exception) -> None:
        """Where the first step under a preset fails, for want of memory say, the one before goes on: with the state
        that was moved if it is still there, else with the newest checkpoint. Raises `error` where nothing helps."""
        before, failed = self._before, self._program
        if before is None or self._cluster.count > 1:  # another process may not have failed
            raise error
        self._program, self._before = before, None
        try:
            self._reports.settle()
            if self._is_state_gone():
                raise error
            self._state = self._compiler.movers.move(
                self._state, before.placement.state_shardings, self._config.low_memory
            )
        except jax.errors.JaxRuntimeError:
            newest = self._saver.newest()
            if newest is None:
                raise error from None
            self._restore(newest.step)
        self._publish(SwitchFailed(to_preset=failed.name, step=self._reports.done, problems=problems_in(error)))

    def _advance(self) -> None:
        """Dispatches one step; the loss that is read meanwhile is that of the step before."""
        began = time.perf_counter()
        batch = self._batch(self._reports.begun)
        waited = 0.0 if self._reports.is_busy else time.perf_counter() - began
        self._state, loss = self._program.step(self._state, batch)
        done = self._reports.done
        self._reports.add(loss, waited)
        if self._reports.done > done:
            self._before = None
            if done == self._begun_at:
                self._compiler.compile_questions(self._program)  # not before: the first step was waited for

    def _batch(self, number: int) -> Any:
        """On the devices, in the structure that the step takes. Where there are other processes, only the rows that
        those of this one hold are read."""
        shardings, structure = jax.tree.flatten(self._program.placement.batch_shardings)
        if self._cluster.count == 1:
            return structure.unflatten(map(jax.device_put, jax.tree.leaves(self._batches[number]), shardings))
        shapes = [array.shape for array in self._program.description.arrays if array.kind == "batch"]

        @cache
        def rows(begin: int, end: int) -> list[Any]:
            return jax.tree.leaves(self._batches.rows(number, range(begin, end)))

        def part(leaf: int, index: Any) -> Any:
            begin, end, _ = index[0].indices(shapes[leaf][0])
            return rows(begin, end)[leaf][:, *index[1:]]

        return structure.unflatten(
            jax.make_array_from_callback(tuple(shapes[leaf]), sharding, partial(part, leaf))
            for leaf, sharding in enumerate(shardings)
        )

    def _obey(self) -> None:
        """Does what process 0 decides, in every process before the same step."""
        agreed = self._cluster.agree(self._orders, Orders)
        for order in agreed.orders:
            if not self._stopping:
                self._handle(order)
        self._agree_at = self._reports.begun + agreed.stride

    def _orders(self) -> Orders:
        """The commands whose turn it is, and what is due; while paused, waits for one."""
        commands = self._inbox.take(block=self._paused and not self._single_steps)
        orders: list[Order] = [self._shared(command) for command in commands]
        if preset := self._preparations.ready():
            orders.append(SwitchNow(preset))
        if self._saver.is_overdue():
            orders.append(SaveCheckpoint())
        return Orders(orders, self._cluster.stride(self._reports.step_seconds))

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
                self._preparations.ask(preset, self._program)
            case AddPreset(preset, text):
                self._add(preset, lambda: text)
            case ReadPreset(preset, sha256):
                self._add(preset, lambda: self._saver.shared_preset(preset, sha256))
            case PreparePreset(preset):
                self._preparations.expect(preset)
                self._preparations.compile_likely(self._program, self._has_core_to_spare)
            case Pause() if not self._paused:
                self._pause()
            case Resume() if self._paused:
                self._paused, self._single_steps = False, 0
                self._reports.restart_clock()
                self._publish(Resumed(step=self._reports.done))
            case StepOnce():
                if not self._paused:
                    self._pause()
                self._single_steps += 1
            case InspectPreset(preset) if self._cluster.process == 0:
                self._preparations.look_into(preset)
            case SaveCheckpoint():
                self._save()
            case ProfileSteps(steps):
                self._profiler.ask(self._reports.begun, steps)
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
            self._publish(PresetAdded(preset=info))
        except Exception as error:
            self._publish(SwitchFailed(to_preset=preset, step=self._reports.done, problems=_told(error)))
        else:
            self._preparations.ask(preset, self._program)

    def _pause(self, problem: str | None = None) -> None:
        self._reports.settle()
        self._paused = True
        self._publish(Paused(step=self._reports.done, problem=problem))

    def _go_back(self, step: int) -> None:
        """To a checkpoint. Whatever fails, the state is the one from before."""
        self._reports.settle()
        self._profiler.end(self._reports.done)
        try:
            self._restore(step)
        except Exception as error:
            self._publish(RestoreFailed(step=step, problems=_told(error)))

    def _switch(self, pending: Pending) -> None:
        """Waits for the program, if it is scheduled for now; then moves the state. Whatever fails, the old program goes
        on with the old state."""
        self._reports.settle()
        if not self._waited_for(pending.ready):
            return
        try:
            ready = self._cluster.together(lambda: self._preparations.finished(pending))
            self._publish(self._moved_to(ready))
        except Exception as error:
            if self._is_state_gone() and (saved := self._saver.newest()):
                self._restore(saved.step)
            self._publish(SwitchFailed(to_preset=pending.preset, step=self._reports.done, problems=_told(error)))
        self._reports.restart_clock()

    def _moved_to(self, ready: Ready) -> Switched:
        source, target = self._program, ready.program
        self._cluster.together(lambda: self._refuse_shortage(target))
        self._publish(Switching(to_preset=target.name, step=self._reports.done))
        began = time.perf_counter()
        if self._config.low_memory:
            self._save_for_sure()
        moved = self._cluster.together(
            lambda: move_state(self._state, source, target, self._compiler.movers, self._config.low_memory)
        )
        stalled = time.perf_counter() - began
        self._state, self._program, self._before = moved.state, target, source
        return Switched(
            from_preset=source.name,
            to_preset=target.name,
            step=self._reports.done,
            arrays=moved.before.size,
            bytes_moved=bytes_moved(moved.state, source.placement.state_shardings, target.placement.state_shardings),
            stall_seconds=stalled,
            compile_seconds=ready.compile_seconds,
            digests_equal=moved.digests_equal,
            loss_before=self._reports.last_loss,
        )

    def _save_for_sure(self) -> None:
        """Before the state is taken apart. Raises Invalid where no checkpoint of it is good."""
        self._save()
        saved = self._saver.newest()
        if saved is None or saved.step != self._reports.done:
            raise Invalid(
                f"step {self._reports.done} could not be saved, and a switch with --low-memory needs that: "
                "mend what keeps it from being saved, and switch again"
            )

    def _is_state_gone(self) -> bool:
        return any(leaf.is_deleted() for leaf in jax.tree.leaves(self._state))

    def _refuse_shortage(self, program: Program) -> None:
        available = limit(self._compiler.devices, self._config.device_memory)
        if problem := shortage(program.name, program.description.memory, available):
            raise Invalid(problem)


def _told(error: Exception) -> list[str]:
    """What to tell of it; where it came from stands in the log, unless it was foreseen."""
    if isinstance(error, Invalid | Damaged):
        return list(error.problems)
    traceback.print_exception(error)
    return problems_in(error)
