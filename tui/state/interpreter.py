"""Applies events to a run's state: live, recorded or headless. Nothing else derives the state from events."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, pairwise

import msgspec

from ...engine.wire import events
from ...engine.wire.events import AnyEvent, EngineStarted, Level, StepsDone
from .losses import Losses
from .rewinds import kept_steps
from .run_state import RECENT_STEPS, Phase, RunState


def apply_all(state: RunState, history: Iterable[AnyEvent]) -> None:
    """Applies events in order. A history is mostly steps: many reports of them in a row are applied at once."""
    for kind, group in groupby(history, type):
        if kind is StepsDone:
            _add_steps(state, [event for event in group if isinstance(event, StepsDone)])
        else:
            for event in group:
                apply(state, event)


def apply(state: RunState, event: AnyEvent) -> None:
    """Applies one event. Long because it is the one place that says what each event changes."""
    if event.level is not Level.UNLOGGED:
        state.events.append(event)
    if not isinstance(event, events.PresetPreviewed | events.CommandRefused):  # sent also while training is stalled
        state.stalled = None
    if not isinstance(event, StepsDone):
        state.wall_time.add(event)
    if (kept := kept_steps(event)) is not None:
        for curve in (state.losses, *state.curves.values(), state.evaluations):
            curve.rewind_to(kept)
        state.numbers.rewind_to(kept)
    match event:
        case EngineStarted():
            _start(state, event)
        case events.EngineReady():
            state.ready = event
            if state.timed_on != (kinds := [device.kind for device in event.devices]):
                state.timed.clear()
                state.timed_on = kinds
        case events.Failed():
            _end(state, Phase.FAILED, event.problems)
        case events.EngineStopped():
            _end(state, Phase.STOPPED, [])
        case events.EngineLost():
            _lose_engine(state, event.process, event.reason)
        case events.Disconnected():
            _end(state, Phase.DISCONNECTED, [event.reason])
            state.reconnecting = event if event.reconnects else None
        case events.Reconnected():
            state.reconnecting = None
            _end(state, Phase.STARTING, [])
            if state.preset:
                _resume(state)
        case events.HostsMeasured():
            state.hosts = {status.process: status for status in event.hosts}
        case events.HostsLost():
            state.hosts = {status.process: status for status in event.hosts}
            state.hosts_lost = dict(event.reasons)
        case events.DevicesDiffer():
            state.differing = event
        case events.TrainingStarted():
            if not event.step:
                _rewind(state, 0)
            _train(state, event.preset)
        case StepsDone():
            _add_steps(state, [event])
        case events.LossNotFinite():
            _mark(state, event.step - 1, "not finite")
        case events.NonfiniteExplained():
            state.nonfinite, state.nonfinite_mesh = event, state.layout.mesh if state.layout else None
        case events.StepSkipped():
            _mark(state, event.step - 1, "skipped")
        case events.Spiked():
            _mark(state, event.step - 1, "spike")
        case events.Evaluated():
            state.evaluations.add(event.step, event.loss)
        case events.MemoryMeasured():
            state.memory = event
        case events.NumbersMeasured():
            state.numbers.add(event)
        case events.CommandRefused():
            state.requested, state.numbers.is_requested = "", False
        case events.Sampled():
            state.sampled = event
        case events.Paused():
            state.is_paused, state.phase, state.paused_by = True, Phase.PAUSED, event.problem
        case events.Resumed():
            state.is_paused, state.paused_by = False, None
            _resume(state)
        case events.Stalled():
            state.stalled = event
        case events.PresetAdded():
            if state.ready:
                state.ready = msgspec.structs.replace(state.ready, presets=[*state.ready.presets, event.preset])
        case events.PresetCompiling():
            state.compiling, state.recent = event, state.recent.copy()
            state.requested = state.requested if event.ahead else ""
            if not state.preset:
                state.phase = Phase.COMPILING
        case events.PresetCompiled():
            state.compiled[event.preset] = event
        case events.AheadEnded():
            if state.compiling is not None and state.compiling.ahead:
                _end_compiling(state)
        case events.ProgramsKept():
            state.kept = event
        case events.PresetInspected():
            state.inspected[event.preset] = event
        case events.PresetPreviewed():
            state.previewed = event
        case events.Switching():
            state.phase, state.requested = Phase.SWITCHING, ""
        case events.Switched():
            state.switches.append(event)
            _mark(state, event.step, event.to_preset)
            _train(state, event.to_preset)
        case events.SwitchFailed():
            state.failed_switch, state.preset, state.requested = event, event.preset, ""
            _end_compiling(state)
            _resume(state)
        case events.SwitchCancelled():
            state.requested = ""
            _end_compiling(state)
        case events.CheckpointSaving():
            state.saving = event.step
        case events.CheckpointSaved() | events.CheckpointFailed():
            state.saving = None
        case events.CheckpointsKept():
            state.checkpoints = event.checkpoints
        case events.Restored():
            state.preset = event.preset
            _rewind(state, event.step)
            _mark(state, event.step, f"↺{event.preset}")
        case events.PartsMeasured():
            state.measured += [event] if event.step_seconds else []
        case events.Profiling() | events.ProfileWriting():
            state.profiling = event
        case events.Profiled():
            state.profiling, state.profiled = None, event
        case events.ProfileFailed():
            state.profiling = None
        case _:  # for the log and a notice
            pass


def _start(state: RunState, event: EngineStarted) -> None:
    """Resets what belongs to one engine: it is the run's first, or the previous one's compiled programs are gone."""
    state.about, state.pid, state.attempt = event.about, event.pid, event.attempt
    if event.attempt:
        state.attempts.begin(event.attempt)
    _end(state, Phase.STARTING, [])
    state.is_paused, state.ready, state.preset, state.kept = False, None, "", None
    for by_key in (state.compiled, state.inspected, state.hosts, state.hosts_lost):
        by_key.clear()


def _mark(state: RunState, step: int, label: str) -> None:
    """Marks a step once: steps that run again are reported again."""
    if (step, label) not in state.marks:
        state.marks.append((step, label))


def _rewind(state: RunState, step: int) -> None:
    """Drops what is after that step, other than curves."""
    state.step, state.is_loss_nonfinite = step, False
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
    state.requested = ""
    state.phase, state.problems, state.numbers.is_requested = phase, problems, False
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
    state.is_loss_nonfinite = last.losses[-1:] == [None] and bool(last.nonfinite)
    state.wall_time.add_steps(reports)
    state.attempts.add_steps(reports[0], last)
    _extend(state.losses, reports, [report.losses for report in reports])
    _add_curves(state, reports)
    state.recent.extend(chain.from_iterable(report.step_seconds for report in reports[-RECENT_STEPS:]))
    if state.compiling is None or state.preset not in state.timed:
        state.timed[state.preset] = state.recent
    waited = last.input_wait_seconds
    state.input_wait = None if waited is None else waited / max(sum(last.step_seconds), 1e-9)


def _extend(curve: Losses, reports: Sequence[StepsDone], values: Sequence[list[float | None]]) -> None:
    """Adds the values of each report at its step, as a line of the history may be missing, or a report be without
    them; all at once if none is."""
    joined = list(chain.from_iterable(values))
    if len(curve) + len(joined) == reports[-1].step and _are_consecutive(reports):
        curve.extend(joined)
        return
    for report, found in zip(reports, values, strict=True):
        if found:
            curve.rewind_to(report.step - len(found))
            curve.extend(found)


def _add_curves(state: RunState, reports: Sequence[StepsDone]) -> None:
    for name in dict.fromkeys(chain.from_iterable(report.metrics for report in reports)):
        _extend(state.curves.setdefault(name, Losses()), reports, [report.metrics.get(name, []) for report in reports])


def _are_consecutive(reports: Sequence[StepsDone]) -> bool:
    return all(before.step + len(after.losses) == after.step for before, after in pairwise(reports))
