"""The boundary between two steps: commands that process 0 broadcasts, and switches that are due."""

import os
from concurrent.futures import Future, wait
from typing import Any

from msgspec import Struct

from ..wire.commands import (
    AddPreset,
    AnyCommand,
    CancelSwitch,
    InspectPreset,
    MeasureNumbers,
    Pause,
    PreparePreset,
    ProfileSteps,
    RestoreCheckpoint,
    Resume,
    SampleText,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from .background_compiles import BackgroundCompiles, Pending
from .device_check import DeviceCheck
from .inputs import DeviceBatches
from .nonfinite import NonfiniteExplainer
from .numbers import ArrayMeter
from .profiler import PERIODIC_STEPS
from .progress import Pausing, Progress
from .sampling import TextSampler
from .switcher import Restorer, Switcher
from .tools import Tools


class SwitchNow(Struct, frozen=True, tag=True):
    """Process 0 is ready for the requested switch to `preset`; the others may take a little longer."""

    preset: str


class MeasureParts(Struct, frozen=True, tag=True):
    """Trace the next steps for the parts of a step: it is time."""


class NumbersNow(Struct, frozen=True, tag=True):
    """Measure the arrays: process 0 has compiled the program that does it."""


StepCommand = AnyCommand | SwitchNow | MeasureParts | NumbersNow


class StepCommands(Struct, frozen=True):
    """Commands that every process carries out before the same step, as process 0 broadcasts them."""

    commands: list[StepCommand]
    stride: int


class StepBoundary:
    """Carries out commands and switches between two steps, in the same order in every process. Its parts are public:
    the loop begins, ends and steps through them."""

    is_stopping = False
    """Whether all processes have agreed to stop before the next step."""

    def __init__(self, tools: Tools, batches: DeviceBatches) -> None:
        self.tools = tools
        self.compiles = BackgroundCompiles(tools.compiler, tools.config.switches, tools.publish)
        self.restorer = Restorer(tools)
        self.switcher = Switcher(tools, self.restorer)
        self.pausing = Pausing(tools.publish)
        self.check = DeviceCheck(tools, self.restorer, self.pausing)
        self.sampler = TextSampler(tools)
        self._meter = ArrayMeter(tools, batches)
        self.explainer = NonfiniteExplainer(tools, self.restorer, batches)

    def is_stopped_before(self, compiled: Future[Any]) -> bool:
        """Waits for a compilation or for a request to stop, and returns whether the request came first. A compilation
        cannot be interrupted, but it need not be awaited."""
        inbox, report = self.tools.inbox, self.compiles.report
        self.is_stopping = self.is_stopping or self.tools.cluster.broadcast(
            lambda: inbox.is_stopped_before(compiled.done, report), bool
        )
        if not self.is_stopping:
            wait([compiled])  # process 0 has finished; this process may take a little longer
        return self.is_stopping

    def cross(self, at: Progress) -> None:
        """Carries out everything that is due before the next step; while paused, waits for a command."""
        if at.begun >= at.commands_at or self.pausing.is_paused:
            self._run_commands(at)
        self.compiles.report()
        self.compiles.compile_likely(at.program, self._has_core_to_spare)
        if scheduled := self.compiles.take_scheduled(at.begun):
            self._switch(at, scheduled)
            self.compiles.compile_scheduled(at.program)
        self.tools.saver.report(at.done)
        if self._meter.is_due(at) and not self.is_stopped_before(self._meter.request(at)):
            self._meter.measure(at)

    def _run_commands(self, at: Progress) -> None:
        found = self.tools.cluster.broadcast(lambda: self._step_commands(at), StepCommands)
        at.commands_at = at.begun + found.stride
        for command in found.commands:
            if not self.is_stopping:
                self._carry_out(command, at)

    def _step_commands(self, at: Progress) -> StepCommands:
        """Returns the commands that are due, decided by process 0; while paused, waits for one."""
        commands: list[StepCommand] = [*self.tools.inbox.take(block=not self.pausing.runs_next_step)]
        if preset := self.compiles.ready():
            commands.append(SwitchNow(preset))
        if self.tools.saver.is_overdue():
            commands.append(SaveCheckpoint())
        if self.tools.profiler.is_overdue():
            commands.append(MeasureParts())
        if self._meter.is_overdue(at):
            commands.append(MeasureNumbers())
        if self._meter.is_ready(at):
            commands.append(NumbersNow())
        return StepCommands(commands, self.tools.cluster.stride(at.reports.step_seconds))

    def _carry_out(self, command: StepCommand, at: Progress) -> None:
        match command:
            case SwitchNow(preset):
                if requested := self.compiles.take_requested(preset):
                    self._switch(at, requested)
            case SwitchPreset(preset):
                self.compiles.request(preset, at.program)
            case CancelSwitch():
                self.compiles.cancel()
            case AddPreset(preset, text):
                if self.switcher.add(at, preset, text):
                    self.compiles.request(preset, at.program)
            case PreparePreset(preset):
                self.compiles.expect(preset)
                self.compiles.compile_likely(at.program, self._has_core_to_spare)
            case Pause() if not self.pausing.is_paused:
                self.pausing.pause(at)
            case Resume() if self.pausing.is_paused:
                self.pausing.resume(at)
            case StepOnce():
                self.pausing.step_once(at)
            case InspectPreset(preset) if self.tools.cluster.process == 0:
                self.compiles.inspect(preset)
            case SaveCheckpoint():
                if self.check.passes(at):
                    at.save(self.tools.saver)
            case ProfileSteps(steps):
                self.tools.profiler.request(at.begun, steps)
            case SampleText():
                self.sampler.sample(at, command)
            case MeasureNumbers():
                self._meter.request(at)
            case NumbersNow():
                self._meter.measure(at)
            case MeasureParts():
                self.tools.profiler.request(at.begun, PERIODIC_STEPS, is_periodic=True)
            case RestoreCheckpoint(step):
                self.tools.profiler.end(at)
                self.restorer.go_back(at, step)
            case Stop():
                self.is_stopping = True
            case _:
                pass

    def _switch(self, at: Progress, pending: Pending) -> None:
        """Waits for the program if it is not compiled yet, then moves the state."""
        self.tools.profiler.end(at)
        if not self.is_stopped_before(pending.ready) and self.check.passes(at):
            self.switcher.switch(at, pending.preset, lambda: self.compiles.finished(pending))
            at.reports.restart_clock()

    def _has_core_to_spare(self) -> bool:
        """Returns whether a compilation slows no step: training is paused, or a core was free in the last minute."""
        return self.pausing.is_paused or os.getloadavg()[0] + 1 <= (os.cpu_count() or 1)
