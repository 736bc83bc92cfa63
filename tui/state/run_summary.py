"""How a run is now, in a few figures, from its `run.json`, its lock and the end of its events."""

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ...engine.wire.event_log import LogReader, deciding_events
from ...engine.wire.run_directory import RunDirectory
from .goodput import Goodput
from .interpreter import apply_all
from .run_state import OVER, Phase, RunState
from .wall_time import WallTime


@dataclass(frozen=True)
class RunSummary:
    """One run, live or ended."""

    directory: RunDirectory
    """Its files."""
    phase: Phase
    """What it does; LOST if its process died without reporting why."""
    model: str
    """Name of the model."""
    preset: str
    """The preset that trains, or trained last."""
    step: int
    """Steps done."""
    loss: float | None
    """Loss of the last step; None if there is none, or it is not finite."""
    pid: int | None
    """Process that trains it; None if there is none, or it runs on another host or in another container."""
    is_live: bool
    """Whether an engine, or an external loop, holds its lock."""
    is_external: bool
    """Whether an external loop trains it, so that nothing here can resume it."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, failed or crashed."""
        return self.phase in OVER


def summarise(directory: RunDirectory) -> RunSummary:
    """Returns the summary of a run, without reading a long history. Raises Invalid if its files cannot be read."""
    state = RunState()
    with suppress(FileNotFoundError):  # it has recorded nothing yet
        apply_all(state, deciding_events(directory.events))
    holder = directory.holder()
    is_live = holder is not None and holder.is_alive
    about = directory.about
    loss = state.losses[-1] if state.losses else math.nan
    return RunSummary(
        directory=directory,
        phase=state.phase if state.is_over or is_live else Phase.LOST,
        model=about.model_name,
        preset=state.preset or about.preset,
        step=state.step,
        loss=loss if math.isfinite(loss) else None,
        pid=holder.pid if holder and holder.is_here else None,
        is_live=is_live,
        is_external=directory.watched is not None,
    )


def recorded_goodput(summary: RunSummary) -> Goodput:
    """Returns where the wall time of a run went. Reads its whole history. Raises Invalid if that cannot be read."""
    wall_time = WallTime()
    with suppress(FileNotFoundError):  # it has recorded nothing yet
        for events in LogReader(summary.directory.events).read():
            wall_time.add_all(events)
    return wall_time.until(time.time() if summary.is_live else None)


def active_at(directory: RunDirectory) -> float:
    """Returns when the run last recorded an event, or was created, in seconds since the epoch; 0 if it is gone."""
    for path in (directory.events, directory.path / "run.json"):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def newest_first(directories: Iterable[RunDirectory]) -> list[RunDirectory]:
    """Returns the runs, the one that was active last at the front."""
    return sorted(directories, key=active_at, reverse=True)
