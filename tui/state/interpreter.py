"""Applies events to a run's state: live, recorded or headless. Nothing else derives the state from events."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, pairwise

import msgspec

from ...engine.wire.events import (
    AheadEnded,
    AnyEvent,
    CheckpointDamaged,
    CheckpointEvent,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSaving,
    CheckpointsKept,
    CommandRefused,
    ConnectionEvent,
    DevicesDiffer,
    Disconnected,
    EngineEvent,
    EngineLost,
    EngineReady,
    EngineStarted,
    EngineStopped,
    Evaluated,
    Failed,
    HostEvent,
    HostsLost,
    HostsMeasured,
    MemoryMeasured,
    PartsMeasured,
    Paused,
    PresetAdded,
    PresetCompiled,
    PresetCompiling,
    PresetEvent,
    PresetInspected,
    PresetPreviewed,
    Profiled,
    ProfileEvent,
    ProfileWriting,
    Profiling,
    ProgramsKept,
    Restored,
    RestoreFailed,
    Resumed,
    Sampled,
    Stalled,
    StepEvent,
    StepsDone,
    SwitchCancelled,
    Switched,
    SwitchEvent,
    SwitchFailed,
    Switching,
    TrainingStarted,
)
from .measured_parts import measured_parts
from .run_state import RECENT_STEPS, Phase, RunState

NOT_LOGGED = StepsDone | MemoryMeasured | HostsMeasured | PresetPreviewed
"""Too frequent for the log, or of no interest later."""
ANSWERS = PresetPreviewed | CommandRefused
"""Sent to this viewer alone, also while training is stalled."""


def apply_all(state: RunState, events: Iterable[AnyEvent]) -> None:
    """Applies events in order. A history is mostly steps: many reports of them in a row are applied at once."""
    for kind, group in groupby(events, type):
        if kind is StepsDone:
            _add_steps(state, [event for event in group if isinstance(event, StepsDone)])
        else:
            for event in group:
                apply(state, event)


def apply(state: RunState, event: AnyEvent) -> None:
    """Applies one event."""
    if not isinstance(event, NOT_LOGGED):
        state.events.append(event)
    if not isinstance(event, ANSWERS):
        state.stalled = event if isinstance(event, Stalled) else None
    if not isinstance(event, StepsDone):
        state.wall_time.add(event)
    if isinstance(event, StepEvent):
        _apply_step(state, event)
    elif isinstance(event, SwitchEvent):
        _apply_switch(state, event)
    elif isinstance(event, PresetEvent):
        _apply_preset(state, event)
    elif isinstance(event, CheckpointEvent):
        _apply_checkpoint(state, event)
    elif isinstance(event, ProfileEvent):
        _apply_profile(state, event)
    elif isinstance(event, HostEvent):
        _apply_hosts(state, event)
    elif isinstance(event, EngineEvent):
        _apply_engine(state, event)
    else:
        _apply_connection(state, event)


def _apply_profile(state: RunState, event: ProfileEvent) -> None:
    if isinstance(event, PartsMeasured | Profiled):
        state.measured += measured_parts(event)
    if not isinstance(event, PartsMeasured):
        state.profiling = event if isinstance(event, Profiling | ProfileWriting) else None
        state.profiled = event if isinstance(event, Profiled) else state.profiled


def _apply_step(state: RunState, event: StepEvent) -> None:
    match event:
        case TrainingStarted():
            if not event.step:
                _rewind(state, 0)
            state.losses.rewind_to(event.step)
            state.evaluations.rewind_to(event.step)
            _train(state, event.preset)
        case StepsDone():
            _add_steps(state, [event])
        case Evaluated():
            state.evaluations.add(event.step, event.loss)
        case MemoryMeasured():
            state.memory = event
        case Sampled():
            state.sampled = event
        case Paused():
            state.is_paused, state.phase, state.paused_by = True, Phase.PAUSED, event.problem
        case Resumed():
            state.is_paused, state.paused_by = False, None
            _resume(state)
        case Stalled():
            pass


def _apply_switch(state: RunState, event: SwitchEvent) -> None:
    match event:
        case Switching():
            state.phase = Phase.SWITCHING
        case Switched():
            state.switches.append(event)
            state.marks.append((event.step, event.to_preset))
            _train(state, event.to_preset)
        case SwitchFailed():
            state.failed_switch, state.preset = event, event.preset or state.preset
            _end_compiling(state)
            _resume(state)
        case SwitchCancelled():
            _end_compiling(state)


def _apply_preset(state: RunState, event: PresetEvent) -> None:
    match event:
        case PresetAdded():
            if state.ready:
                state.ready = msgspec.structs.replace(state.ready, presets=[*state.ready.presets, event.preset])
        case PresetCompiling():
            state.compiling, state.recent = event, state.recent.copy()
            if not state.preset:
                state.phase = Phase.COMPILING
        case PresetCompiled():
            state.compiled[event.preset] = event
        case AheadEnded():
            if state.compiling is not None and state.compiling.ahead:
                _end_compiling(state)
        case ProgramsKept():
            state.kept = event
        case PresetInspected():
            state.inspected[event.preset] = event
        case PresetPreviewed():
            state.previewed = event


def _apply_checkpoint(state: RunState, event: CheckpointEvent) -> None:
    match event:
        case CheckpointSaving():
            state.saving = event.step
        case CheckpointSaved() | CheckpointFailed():
            state.saving = None
        case CheckpointDamaged() | RestoreFailed():
            pass  # for the log and a notice
        case CheckpointsKept():
            state.checkpoints = event.checkpoints
        case Restored():
            state.preset = event.preset
            _rewind(state, event.step)
            state.marks.append((event.step, f"↺{event.preset}"))


def _apply_hosts(state: RunState, event: HostEvent) -> None:
    if isinstance(event, DevicesDiffer):
        state.differing = event
        return
    state.hosts = {status.process: status for status in event.hosts}
    if isinstance(event, HostsLost):
        state.hosts_lost = event.reasons


def _apply_engine(state: RunState, event: EngineEvent) -> None:
    match event:
        case EngineStarted():
            _start(state, event)
        case EngineReady():
            state.ready = event
        case Failed():
            _end(state, Phase.FAILED, event.problems)
        case EngineStopped():
            _end(state, Phase.STOPPED, [])
        case EngineLost():
            _lose_engine(state, event.process, event.reason)


def _apply_connection(state: RunState, event: ConnectionEvent) -> None:
    if isinstance(event, Disconnected):
        _end(state, Phase.DISCONNECTED, [event.reason])


def _start(state: RunState, event: EngineStarted) -> None:
    """Resets what belongs to one engine: it is the run's first, or the previous one's compiled programs are gone."""
    state.about, state.pid, state.attempt = event.about, event.pid, event.attempt
    if event.attempt:
        state.attempts.begin(event.attempt)
    _end(state, Phase.STARTING, [])
    state.is_paused, state.ready, state.preset, state.kept = False, None, "", None
    for by_key in (state.compiled, state.inspected, state.timed, state.hosts, state.hosts_lost):
        by_key.clear()


def _rewind(state: RunState, step: int) -> None:
    """Drops everything after that step."""
    state.step = step
    state.losses.rewind_to(step)
    state.evaluations.rewind_to(step)
    state.marks = [mark for mark in state.marks if mark[0] < step]
    state.recent = deque(maxlen=RECENT_STEPS)
    state.paused_by = None


def _train(state: RunState, preset: str) -> None:
    state.preset, state.failed_switch = preset, None
    _end_compiling(state)
    _resume(state)


def _resume(state: RunState) -> None:
    state.phase = Phase.PAUSED if state.is_paused else Phase.TRAINING


def _end_compiling(state: RunState) -> None:
    """Steps that ran during a compilation say nothing about the time of the next ones."""
    state.compiling = None
    state.recent = deque(maxlen=RECENT_STEPS)


def _end(state: RunState, phase: Phase, problems: list[str]) -> None:
    state.phase, state.problems = phase, problems
    state.compiling = state.saving = state.profiling = None


def _lose_engine(state: RunState, process: int, reason: str) -> None:
    """Names the process that was lost. The other processes of an engine end without it."""
    hosts = state.ready.hosts if state.ready else []
    lost = next((host for host in hosts if host.process == process), None)
    if lost and not state.is_over:
        state.hosts_lost = {process: reason}
        reason = f"process {process} ({lost.name}, pid {lost.pid}) was lost at step {state.step:,}: {reason}"
    _end(state, Phase.LOST, [reason])


def _add_steps(state: RunState, reports: Sequence[StepsDone]) -> None:
    last = reports[-1]
    state.step, state.stalled = last.step, None
    state.wall_time.add_steps(reports)
    state.attempts.add_steps(reports[0], last)
    _add_losses(state, reports)
    state.recent.extend(chain.from_iterable(report.step_seconds for report in reports[-RECENT_STEPS:]))
    if state.compiling is None or state.preset not in state.timed:
        state.timed[state.preset] = state.recent
    waited = last.input_wait_seconds
    state.input_wait = None if waited is None else waited / max(sum(last.step_seconds), 1e-9)


def _add_losses(state: RunState, reports: Sequence[StepsDone]) -> None:
    """Adds each report at its step, as a line of the history may be missing; all at once if none is."""
    losses = list(chain.from_iterable(report.losses for report in reports))
    if len(state.losses) + len(losses) == reports[-1].step and _are_consecutive(reports):
        state.losses.extend(losses)
        return
    for report in reports:
        state.losses.rewind_to(report.step - len(report.losses))
        state.losses.extend(report.losses)


def _are_consecutive(reports: Sequence[StepsDone]) -> bool:
    return all(before.step + len(after.losses) == after.step for before, after in pairwise(reports))
