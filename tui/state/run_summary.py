"""How a run is now, in a few figures, from its `run.json`, its lock and the end of its events."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

from ...engine.base import formatting
from ...engine.spec.preset_reader import name_of
from ...engine.wire.event_log import LogReader, deciding_events
from ...engine.wire.events import CheckpointFailed, CheckpointSaved, Restored, TrainingStarted
from ...engine.wire.run_directory import RunDirectory
from ..terminal.plain_table import Column, figure
from .interpreter import apply_all
from .run_state import OVER, Phase, RunState

SAVES = CheckpointSaved | CheckpointFailed | TrainingStarted | Restored
"""Events from which a checkpoint is awaited."""
LATE_SAVES = 2.5
"""Intervals between checkpoints after which one is late."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """One run, live or ended."""

    run: str
    """Name of the run."""
    state: Phase
    """Its state; `crashed` if its process died without reporting why."""
    model: str
    """Name of the model."""
    preset: str
    """The preset that trains, or trained last."""
    step: int
    """Steps done."""
    loss: float | None
    """Loss of the last step; null if there is none, or it is not finite."""
    best_held_out_loss: float | None
    """Lowest loss of the held-out data since its engine last started; null if they were not evaluated."""
    pid: int | None
    """Process that trains it; null if there is none, or it runs on another host or in another container."""
    directory: str
    """Path of its files."""
    bytes: int
    """Size of these files, checkpoints included."""
    active_at: float
    """When it last recorded an event, in seconds since the epoch."""
    tokens_per_second: float | None
    """Tokens per second of the last steps; null if it does not train, or has reported none."""
    trouble: str
    """What needs a look: `crashed`, `failed`, `out of memory`, `stalled in FUNCTION (FILE:LINE)`, `loss not finite`,
    `checkpoint failed` or `checkpoint late`; empty for nothing."""
    is_live: bool
    """Whether an engine, or an external loop, holds its lock."""
    is_external: bool
    """Whether an external loop trains it, so that nothing here can resume it."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER


def summarise(directory: RunDirectory) -> RunSummary:
    """Returns the summary of a run, without reading a long history. Raises UserError if its files cannot be read."""
    state = RunState()
    with suppress(FileNotFoundError):  # it has recorded nothing yet
        apply_all(state, deciding_events(directory.events))
    holder = directory.holder()
    is_live = holder is not None and holder.is_alive
    about = directory.about
    loss = state.losses[-1] if state.losses else math.nan
    if not (state.is_over or is_live):
        state.phase = Phase.LOST
    return RunSummary(
        run=directory.name,
        state=state.phase,
        model=about.model_name,
        preset=state.preset or about.preset,
        step=state.step,
        loss=loss if math.isfinite(loss) else None,
        best_held_out_loss=state.evaluations.best[1] if state.evaluations.best else None,
        pid=holder.pid if holder and holder.is_here else None,
        directory=str(directory.path),
        bytes=_size(directory),
        active_at=active_at(directory),
        tokens_per_second=state.tokens_per_second if state.phase is Phase.TRAINING else None,
        trouble=trouble_of(state, time.time()),
        is_live=is_live,
        is_external=directory.watched is not None,
    )


def trouble_of(state: RunState, now: float) -> str:
    """Returns what needs a look in a run at the time `now`; empty for nothing. See `RunSummary.trouble`."""
    if state.phase is Phase.FAILED:
        return "out of memory" if any("out of" in each and "memory" in each for each in state.problems) else "failed"
    if state.phase is Phase.LOST:
        return Phase.LOST.value
    if state.is_live and state.stalled:
        return f"stalled in {state.stalled.where}"
    if state.is_loss_nonfinite:
        return "loss not finite"
    saves = (each for each in reversed(state.events) if isinstance(each, SAVES))
    last = next(saves, None)
    if isinstance(last, CheckpointFailed):
        return "checkpoint failed"
    checkpoints = state.config.checkpoints if state.config else None
    if state.phase is Phase.TRAINING and last and checkpoints and checkpoints.every_minutes:
        return "checkpoint late" if now - last.time > LATE_SAVES * 60 * checkpoints.every_minutes else ""
    return ""


def recorded(directory: RunDirectory) -> RunState:
    """Returns the state of a run after its whole history. Raises UserError if that cannot be read."""
    state = RunState()
    with suppress(FileNotFoundError):  # it has recorded nothing yet
        for events in LogReader(directory.events).read():
            apply_all(state, events)
    return state


def _size(directory: RunDirectory) -> int:
    with suppress(OSError):  # a checkpoint goes while an engine trains
        return directory.bytes
    return 0


def active_at(directory: RunDirectory) -> float:
    for path in (directory.events, directory.path / "run.json"):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def newest_first(directories: Iterable[RunDirectory]) -> list[RunDirectory]:
    return sorted(directories, key=active_at, reverse=True)


def _age(summary: RunSummary) -> float:
    return 0.0 if summary.is_live else time.time() - summary.active_at


RUNS: Sequence[Column[RunSummary]] = (
    Column("run", lambda summary: summary.run),
    figure("age", _age, lambda seconds: formatting.rough_seconds(seconds) if seconds else "now"),
    Column("model", lambda summary: summary.model, leaves=2),
    Column("preset", lambda summary: name_of(summary.preset), leaves=3),
    figure("steps", lambda summary: summary.step, "{:,}".format),
    figure("loss", lambda summary: summary.loss, "{:.4g}".format, unknown="–"),
    figure("held-out", lambda summary: summary.best_held_out_loss, "{:.4g}".format, 4),
    figure("tokens/s", lambda summary: summary.tokens_per_second, formatting.count, 5),
    figure("size", lambda summary: summary.bytes, formatting.size, 1),
    Column("trouble", lambda summary: "" if summary.trouble == summary.state else summary.trouble, leaves=7),
    Column("state", lambda summary: summary.state),
)
"""The columns of runs."""
