"""How a run is now, in a few figures, from its `run.json`, its lock and the end of its events."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ...engine.base import formatting
from ...engine.spec.preset_reader import name_of
from ...engine.wire.event_log import LogReader, deciding_events
from ...engine.wire.run_directory import RunDirectory
from ..terminal.plain_table import Column, figure
from .goodput import Goodput, WallTime
from .interpreter import apply_all
from .run_state import OVER, Phase, RunState


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
    return RunSummary(
        run=directory.name,
        state=state.phase if state.is_over or is_live else Phase.LOST,
        model=about.model_name,
        preset=state.preset or about.preset,
        step=state.step,
        loss=loss if math.isfinite(loss) else None,
        best_held_out_loss=state.evaluations.best[1] if state.evaluations.best else None,
        pid=holder.pid if holder and holder.is_here else None,
        directory=str(directory.path),
        bytes=_size(directory),
        is_live=is_live,
        is_external=directory.watched is not None,
    )


def recorded_goodput(summary: RunSummary) -> Goodput:
    """Returns where the wall time of a run went. Reads its whole history. Raises UserError if that cannot be read."""
    wall_time = WallTime()
    with suppress(FileNotFoundError):  # it has recorded nothing yet
        for events in LogReader(RunDirectory(Path(summary.directory)).events).read():
            wall_time.add_all(events)
    return wall_time.until(time.time() if summary.is_live else None)


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


def _age(summary: RunSummary) -> str:
    return (
        "now"
        if summary.is_live
        else formatting.rough_seconds(time.time() - active_at(RunDirectory(Path(summary.directory))))
    )


RUNS: Sequence[Column[RunSummary]] = (
    Column("run", lambda summary: summary.run),
    figure("age", _age),
    Column("model", lambda summary: summary.model, leaves=2),
    Column("preset", lambda summary: name_of(summary.preset), leaves=3),
    figure("steps", lambda summary: f"{summary.step:,}"),
    figure("loss", lambda summary: "–" if summary.loss is None else f"{summary.loss:.4g}"),
    figure(
        "held-out", lambda summary: "" if summary.best_held_out_loss is None else f"{summary.best_held_out_loss:.4g}", 4
    ),
    figure("size", lambda summary: formatting.size(summary.bytes), 1),
    Column("state", lambda summary: summary.state),
)
"""The columns of runs."""
