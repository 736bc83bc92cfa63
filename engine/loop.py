"""The training loop: steps, and between two steps the commands. It waits for no viewer and for no metric."""

import queue
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import jax

from .compiler import Compiler, Ready
from .config import Invalid, RunConfig
from .data import Batches
from .memory import measure
from .program import Program, make_state
from .protocol import (
    AnyCommand,
    Event,
    InspectPreset,
    Pause,
    Paused,
    PresetCompiling,
    PresetInspected,
    Resume,
    Resumed,
    StepOnce,
    Stop,
    SwitchCancelled,
    Switched,
    SwitchFailed,
    Switching,
    SwitchPreset,
    TrainingStarted,
)
from .reshard import bytes_moved, move_state
from .step_reports import StepReports
from .task import Batch, Task

Command = AnyCommand | None
"""None only wakes a loop that waits."""


@dataclass(frozen=True)
class Pending:
    """A switch that is being prepared."""

    preset: str
    ready: Future[Ready]


class Loop:
    """Owns the state. All of it runs in one thread; `inbox` is how others reach it."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        batches: Batches,
        compiler: Compiler,
        publish: Callable[[Event], None],
        inbox: "queue.SimpleQueue[Command]",
    ) -> None:
        self._config = config
        self._task = task
        self._batches = batches
        self._compiler = compiler
        self._publish = publish
        self._inbox = inbox
        self._scheduled = sorted(config.switches, key=lambda switch: switch.step)
        self._described: set[str] = set()
        self._pending: Pending | None = None
        self._ahead: Pending | None = None
        self._inspecting: dict[str, Future[PresetInspected] | None] = {}
        """By preset; None once told."""
        self._paused = False
        self._single_steps = 0
        self._stopping = False
        self._reports = StepReports(publish, partial(measure, compiler.devices))

    def run(self) -> int:
        """Trains until the last step or until it is told to stop. Returns the number of steps done."""
        self._publish(PresetCompiling(preset=self._config.preset))
        self._program = self._compiler.compiled(self._config.preset)
        self._describe(self._program)
        self._state = make_state(self._task, self._program.placement)
        self._publish(TrainingStarted(preset=self._preset))
        self._prepare_scheduled()
        self._reports.restart_clock()
        while not self._is_over():
            self._obey()
            self._take_scheduled()
            self._switch_if_ready()
            self._tell_inspected()
            self._advance_if_wanted()
        self._reports.settle()
        self._compiler.close()
        return self._reports.done

    @property
    def _preset(self) -> str:
        return self._program.name

    def _is_over(self) -> bool:
        return self._stopping or self._reports.begun == self._config.steps

    def _advance_if_wanted(self) -> None:
        if self._is_over() or (self._paused and not self._single_steps):
            return
        if self._paused:
            self._single_steps -= 1
            self._reports.restart_clock()
        self._advance()
        if self._paused:
            self._reports.settle()

    def _advance(self) -> None:
        """Dispatches one step; the loss that is read meanwhile is that of the step before."""
        began = time.perf_counter()
        inputs, targets = self._batches[self._reports.begun]
        batch = Batch(*map(jax.device_put, (inputs, targets), self._program.placement.batch_shardings))
        waited = time.perf_counter() - began
        self._state, loss = self._program.step(self._state, batch)
        self._reports.add(loss, waited)

    def _obey(self) -> None:
        """Takes all commands that wait; while paused, waits for one."""
        while True:
            try:
                command = self._inbox.get(block=self._paused and not self._single_steps)
            except queue.Empty:
                return
            self._handle(command)
            if command is None or self._stopping:
                return

    def _handle(self, command: Command) -> None:
        match command:
            case SwitchPreset(preset):
                self._request(preset)
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
            case InspectPreset(preset) if preset not in self._inspecting:
                self._inspecting[preset] = self._compiler.inspect(preset, lambda: self._inbox.put(None))
            case Stop():
                self._stopping = True
            case _:
                pass

    def _pause(self) -> None:
        self._reports.settle()
        self._paused = True
        self._publish(Paused(step=self._reports.done))

    def _request(self, preset: str) -> None:
        """Begins to prepare a switch, in the place of one that is not finished."""
        if self._pending is not None:
            if self._pending.preset == preset:
                return
            self._publish(SwitchCancelled(to_preset=self._pending.preset))
            self._pending = None
        if preset != self._preset:
            self._pending = self._prepare(preset)

    def _prepare(self, preset: str) -> Pending:
        self._publish(PresetCompiling(preset=preset))
        return Pending(preset, self._compiler.request(self._program, preset, lambda: self._inbox.put(None)))

    def _prepare_scheduled(self) -> None:
        """The next switch of the schedule is compiled ahead."""
        if self._scheduled and self._ahead is None:
            self._ahead = self._prepare(self._scheduled[0].preset)

    def _take_scheduled(self) -> None:
        """A scheduled switch falls exactly between its two steps: training waits for its program."""
        if self._scheduled and self._scheduled[0].step == self._reports.begun:
            self._request(self._preset)  # takes back what was asked for meanwhile
            self._scheduled.pop(0)
            pending, self._ahead = self._ahead, None
            if pending is not None:
                self._switch(pending)
            self._prepare_scheduled()

    def _switch_if_ready(self) -> None:
        for pending in (self._pending, self._ahead):
            if pending is not None and pending.ready.done() and pending.ready.exception() is None:
                self._describe(pending.ready.result().program)
        if self._pending is not None and self._pending.ready.done():
            pending, self._pending = self._pending, None
            self._switch(pending)

    def _tell_inspected(self) -> None:
        for preset, future in self._inspecting.items():
            if future is not None and future.done():
                self._inspecting[preset] = None
                self._publish(_inspected(preset, future))

    def _switch(self, pending: Pending) -> None:
        """Waits for the program, then moves the state. Whatever fails, the old program goes on with the old state."""
        self._reports.settle()
        try:
            ready = pending.ready.result()
            self._describe(ready.program)
            self._publish(self._moved_to(ready))
        except Exception as error:
            traceback.print_exc()
            problems = list(error.problems) if isinstance(error, Invalid) else [f"{type(error).__name__}: {error}"]
            self._publish(SwitchFailed(to_preset=pending.preset, step=self._reports.done, problems=problems))
        self._reports.restart_clock()

    def _moved_to(self, ready: Ready) -> Switched:
        source, target = self._program, ready.program
        self._publish(Switching(to_preset=target.name, step=self._reports.done))
        began = time.perf_counter()
        moved = move_state(self._state, source, target, self._compiler.movers)
        stalled = time.perf_counter() - began
        self._state, self._program = moved.state, target
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

    def _describe(self, program: Program) -> None:
        """Tells of a preset's layout, once a run."""
        if program.name in self._described:
            return
        self._described.add(program.name)
        self._publish(program.description)


def _inspected(preset: str, future: Future[PresetInspected]) -> PresetInspected:
    """What came out, also where nothing did: a viewer waits for it."""
    try:
        return future.result()
    except Exception as error:
        return PresetInspected(
            preset=preset, arrays=[], rematerializations=[], problem=f"{type(error).__name__}: {error}"
        )
