"""What a viewer knows of a run. `apply` is the only place where events are interpreted: live, recorded or headless."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, groupby, pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ...engine.analysis.layout import shards_differ
from ...engine.analysis.lint import Finding, lint
from ...engine.spec.config import RunConfig, WatchedRun
from ...engine.wire.descriptions import ArrayInfo, CheckpointInfo, HostStatus, PresetInfo
from ...engine.wire.events import (
    AheadEnded,
    AnyEvent,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSaving,
    CheckpointsKept,
    CommandRefused,
    Disconnected,
    EngineLost,
    EngineReady,
    EngineStarted,
    EngineStopped,
    Failed,
    HostsLost,
    HostsMeasured,
    MemoryMeasured,
    Paused,
    PresetAdded,
    PresetCompiled,
    PresetCompiling,
    PresetInspected,
    PresetWeighed,
    Profiled,
    ProfileFailed,
    ProfileWriting,
    Profiling,
    ProgramsKept,
    Restored,
    RestoreFailed,
    Resumed,
    Stalled,
    StepsDone,
    SwitchCancelled,
    Switched,
    SwitchFailed,
    Switching,
    TrainingStarted,
)
from .losses import Losses

if TYPE_CHECKING:  # the first frame does not wait for them
    from ...engine.planning.ranking import Row
    from .comparison import Comparison

RECENT_STEPS = 32
"""Steps over which step time is taken, as their median."""


class Phase(StrEnum):
    STARTING = "starting"
    COMPILING = "compiling"
    TRAINING = "training"
    SWITCHING = "switching"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "crashed"
    DISCONNECTED = "disconnected"


OVER = (Phase.STOPPED, Phase.FAILED, Phase.LOST)


@dataclass
class RunState:
    phase: Phase = Phase.STARTING
    about: RunConfig | WatchedRun | None = None
    pid: int | None = None
    ready: EngineReady | None = None
    preset: str = ""
    """The active one; empty before training."""
    step: int = 0
    losses: Losses = field(default_factory=Losses)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Seconds of the last steps under the active preset."""
    timed: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    """The same of each preset that ran, while nothing was compiled beside it if there were such steps."""
    input_wait: float | None = None
    """Part of the time of the last report that was spent waiting for batches, where the engine can tell."""
    compiling: PresetCompiling | None = None
    """The preset that is compiled while training goes on."""
    compiled: dict[str, PresetCompiled] = field(default_factory=dict[str, PresetCompiled])
    inspected: dict[str, PresetInspected] = field(default_factory=dict[str, PresetInspected])
    kept: ProgramsKept | None = None
    """Programs in memory; None where the engine did not report them."""
    stalled: Stalled | None = None
    """Until something happens again."""
    memory: MemoryMeasured | None = None
    hosts: dict[int, HostStatus] = field(default_factory=dict[int, HostStatus])
    """By process, as they were last seen, where there are several."""
    hosts_lost: dict[int, str] = field(default_factory=dict[int, str])
    """Why, by process."""
    followed: int | None = None
    """The device that the user follows through every array. This and the next two are told by no event."""
    comparison: "Comparison | None" = None
    """The one that this viewer makes, or has made last."""
    estimates: "dict[str, Row]" = field(default_factory=dict[str, "Row"])
    """By preset, once they were asked for."""
    weighed: PresetWeighed | None = None
    """The last answer to this viewer."""
    switches: list[Switched] = field(default_factory=list[Switched])
    marks: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Step and preset of each switch, and of each time that an earlier state was taken up."""
    checkpoints: list[CheckpointInfo] = field(default_factory=list[CheckpointInfo])
    """What the run can go on from, oldest first."""
    saving: int | None = None
    """The step that is being written beside the steps."""
    profiling: Profiling | ProfileWriting | None = None
    """The trace that goes on, or is written."""
    last_checkpoint: CheckpointSaved | CheckpointFailed | CheckpointDamaged | Restored | RestoreFailed | None = None
    paused_by: str | None = None
    """Why the engine paused by itself."""
    refused: SwitchFailed | None = None
    """The last switch, if it failed."""
    problems: list[str] = field(default_factory=list[str])
    """Why the run ended, if it did not end well."""
    events: list[AnyEvent] = field(default_factory=list[AnyEvent])
    """All but the steps, the memory they took and answers to this viewer, for the log."""

    @property
    def config(self) -> RunConfig | None:
        """What the engine was told, where the loop is ours."""
        return self.about if isinstance(self.about, RunConfig) else None

    @property
    def watched(self) -> WatchedRun | None:
        """The run trains in a loop of its own, which takes no commands."""
        return self.about if isinstance(self.about, WatchedRun) else None

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def is_heard(self) -> bool:
        """More is told, and asked for."""
        return not self.is_over and self.phase is not Phase.DISCONNECTED

    @property
    def is_quiet(self) -> bool:
        """Steps are made, and nothing else that takes time from them."""
        beside = (self.compiling, self.saving, self.profiling)
        return self.phase is Phase.TRAINING and all(other is None for other in beside)

    @property
    def newest(self) -> CheckpointInfo | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def layout(self) -> PresetCompiled | None:
        """The active preset's arrays and mesh."""
        return self.compiled.get(self.preset)

    @property
    def inspection(self) -> PresetInspected | None:
        return self.inspected.get(self.preset)

    @property
    def arrays(self) -> list[ArrayInfo]:
        """Everything that is known of the active preset's step."""
        inner = self.inspection.arrays if self.inspection else []
        return [*self.layout.arrays, *inner] if self.layout else []

    @property
    def findings(self) -> list[Finding]:
        return lint(self.layout, self.inspection, self.ready.flops_per_step) if self.layout and self.ready else []

    @property
    def previous(self) -> str | None:
        """The preset before the last switch."""
        return self.switches[-1].from_preset if self.switches else None

    @property
    def changed(self) -> set[str]:
        """Names of the arrays that the last switch laid out otherwise."""
        before = self.compiled.get(self.previous or "")
        if before is None or self.layout is None:
            return set()
        inner = self.inspected.get(before.preset)
        old = {array.name: array for array in (*before.arrays, *(inner.arrays if inner else ()))}
        return {
            array.name
            for array in self.arrays
            if array.name in old and shards_differ(old[array.name], array, before.mesh, self.layout.mesh)
        }

    @property
    def seconds_per_step(self) -> float | None:
        return median(self.recent) if self.recent else None

    @property
    def counted(self) -> str:
        """`tokens`, or `examples` where a user's function makes the batches."""
        return self.ready.counted if self.ready else "tokens"

    @property
    def tokens_per_second(self) -> float | None:
        """Or examples."""
        seconds = self.seconds_per_step
        tokens = self.ready.tokens_per_step if self.ready else None
        return tokens / seconds if tokens and seconds else None

    @property
    def flops_per_second(self) -> float | None:
        """Of the model, by formula."""
        seconds = self.seconds_per_step
        flops = self.ready.flops_per_step if self.ready else None
        return flops / seconds if flops and seconds else None

    def seconds_under(self, preset: str) -> float | None:
        """Of a step; None where it did not run."""
        return median(self.timed[preset]) if preset in self.timed else None

    def is_compiled(self, preset: str) -> bool:
        """A switch to it compiles nothing."""
        return preset in (self.kept.presets if self.kept else self.compiled)

    def preset_info(self, name: str) -> PresetInfo | None:
        return next((info for info in self.ready.presets if info.name == name), None) if self.ready else None

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """In order. A history is steps for the most part, and many reports of them are taken up as soon as one."""
        for kind, group in groupby(events, type):
            if kind is StepsDone:
                self._add_steps([event for event in group if isinstance(event, StepsDone)])
            else:
                for event in group:
                    self.apply(event)

    def apply(self, event: AnyEvent) -> None:
        if not isinstance(event, StepsDone | MemoryMeasured | HostsMeasured | PresetWeighed):
            self.events.append(event)
        if not isinstance(event, PresetWeighed | CommandRefused):
            self.stalled = event if isinstance(event, Stalled) else None
        match event:
            case EngineStarted():
                self._start_anew(event)
            case EngineReady():
                self.ready = event
            case PresetCompiling():
                self.compiling, self.recent = event, self.recent.copy()
                if not self.preset:
                    self.phase = Phase.COMPILING
            case PresetCompiled():
                self.compiled[event.preset] = event
            case ProgramsKept():
                self.kept = event
            case PresetInspected():
                self.inspected[event.preset] = event
            case PresetAdded() if self.ready:
                self.ready = msgspec.structs.replace(self.ready, presets=[*self.ready.presets, event.preset])
            case PresetWeighed():
                self.weighed = event
            case MemoryMeasured():
                self.memory = event
            case HostsMeasured():
                self.hosts = {status.process: status for status in event.hosts}
            case HostsLost():
                self.hosts = {status.process: status for status in event.hosts}
                self.hosts_lost = event.reasons
            case TrainingStarted():
                if not event.step:
                    self._go_on_from(0)
                self.losses.go_on_from(event.step)
                self._train_under(event.preset)
            case StepsDone():
                self._add_steps([event])
            case Switching():
                self.phase = Phase.SWITCHING
            case Switched():
                self.switches.append(event)
                self.marks.append((event.step, event.to_preset))
                self._train_under(event.to_preset)
            case SwitchFailed():
                self.refused, self.preset = event, event.preset or self.preset
                self._end_compiling()
                self._go_on()
            case SwitchCancelled():
                self._end_compiling()
            case AheadEnded():
                if self.compiling is not None and self.compiling.ahead:
                    self._end_compiling()
            case CheckpointSaving():
                self.saving = event.step
            case CheckpointsKept():
                self.checkpoints = event.checkpoints
            case CheckpointSaved() | CheckpointFailed():
                self.saving, self.last_checkpoint = None, event
            case CheckpointDamaged() | RestoreFailed():
                self.last_checkpoint = event
            case Restored():
                self.last_checkpoint = event
                self.preset = event.preset
                self._go_on_from(event.step)
                self.marks.append((event.step, f"↺{event.preset}"))
            case Profiling() | ProfileWriting():
                self.profiling = event
            case Profiled() | ProfileFailed():
                self.profiling = None
            case Paused():
                self._paused, self.phase, self.paused_by = True, Phase.PAUSED, event.problem
            case Resumed():
                self._paused, self.paused_by = False, None
                self._go_on()
            case Failed():
                self._end(Phase.FAILED, event.problems)
            case EngineStopped():
                self._end(Phase.STOPPED, [])
            case Disconnected():
                self._end(Phase.DISCONNECTED, [event.reason])
            case EngineLost():
                self._lose_engine(event.process, event.reason)
            case _:
                pass

    _paused: bool = False

    def _start_anew(self, event: EngineStarted) -> None:
        """An engine, the first or another one, of this run: what the one before it compiled is gone."""
        self.about, self.pid = event.about, event.pid
        self._end(Phase.STARTING, [])
        self._paused, self.ready, self.preset, self.kept = False, None, "", None
        for described in (self.compiled, self.inspected, self.timed, self.hosts, self.hosts_lost):
            described.clear()

    def _go_on_from(self, step: int) -> None:
        """What was done after it is as if it had not been."""
        self.step = step
        self.losses.go_on_from(step)
        self.marks = [mark for mark in self.marks if mark[0] < step]
        self.recent = deque(maxlen=RECENT_STEPS)
        self.paused_by = None

    def _end(self, phase: Phase, problems: list[str]) -> None:
        self.phase, self.problems = phase, problems
        self.compiling = self.saving = self.profiling = None

    def _lose_engine(self, process: int, reason: str) -> None:
        """Of several processes the first is gone as well: the others end without it."""
        hosts = self.ready.hosts if self.ready else []
        gone = next((host for host in hosts if host.process == process), None)
        if gone and not self.is_over:
            self.hosts_lost = {process: reason}
            reason = f"process {process} ({gone.name}, pid {gone.pid}) is lost after step {self.step:,}: {reason}"
        self._end(Phase.LOST, [reason])

    def _train_under(self, preset: str) -> None:
        self.preset, self.refused = preset, None
        self._end_compiling()
        self._go_on()

    def _end_compiling(self) -> None:
        """The times of steps beside a compilation say nothing of the next ones."""
        self.compiling = None
        self.recent = deque(maxlen=RECENT_STEPS)

    def _go_on(self) -> None:
        self.phase = Phase.PAUSED if self._paused else Phase.TRAINING

    def _add_steps(self, reports: Sequence[StepsDone]) -> None:
        last = reports[-1]
        self.step, self.stalled = last.step, None
        self._add_losses(reports)
        self.recent.extend(chain.from_iterable(report.step_seconds for report in reports[-RECENT_STEPS:]))
        if self.compiling is None or self.preset not in self.timed:
            self.timed[self.preset] = self.recent
        waited = last.input_wait_seconds
        self.input_wait = None if waited is None else waited / max(sum(last.step_seconds), 1e-9)

    def _add_losses(self, reports: Sequence[StepsDone]) -> None:
        """Each to its step: a line of the history may be lost. Where none is, all are taken up at once."""
        losses = list(chain.from_iterable(report.losses for report in reports))
        if len(self.losses) + len(losses) == reports[-1].step and _follow_each_other(reports):
            self.losses.extend(losses)
            return
        for report in reports:
            self.losses.go_on_from(report.step - len(report.losses))
            self.losses.extend(report.losses)


def _follow_each_other(reports: Sequence[StepsDone]) -> bool:
    return all(before.step + len(after.losses) == after.step for before, after in pairwise(reports))
