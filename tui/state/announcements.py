"""What is said where the user looks, whichever view is up: above all what went wrong."""

from dataclasses import dataclass
from typing import Literal

from ...engine.wire.events import (
    AnyEvent,
    CheckpointDamaged,
    CheckpointFailed,
    CommandRefused,
    Disconnected,
    EngineLost,
    EngineReady,
    EngineStarted,
    Failed,
    Paused,
    Profiled,
    ProfileFailed,
    RestoreFailed,
    SwitchFailed,
)
from ...engine.wire.framing import VERSION
from .log_lines import in_words, opened_by, profile
from .run_state import Phase, RunState

LONG = 60.0
"""Seconds, for what is to be read."""


@dataclass(frozen=True)
class Announcement:
    text: str
    title: str = ""
    severity: Literal["information", "warning", "error"] = "error"
    seconds: float | None = LONG
    """None: as long as others."""


def announcement(event: AnyEvent, state: RunState, opened: float) -> Announcement | None:
    """Of what happened since the viewer was `opened`; of what was before only how it ended."""
    if isinstance(event, EngineLost):
        return Announcement(f"{in_words(event)}\n{_way_on(state)}", "the run cannot go on")
    if isinstance(event, Disconnected):
        return Announcement(event.reason, "disconnected")
    if isinstance(event, CommandRefused):
        return Announcement(event.problem, severity="warning", seconds=None)
    if isinstance(event, EngineStarted) and event.protocol > VERSION:
        newer = f"recorded under protocol {event.protocol}, this viewer knows {VERSION}"
        return Announcement(f"{newer}: what it does not understand is left out: update shardtui", severity="warning")
    if isinstance(event, EngineReady) and event.warnings:
        return Announcement("\n".join(event.warnings), severity="warning")
    return _fresh(event, state) if event.time >= opened else None


def _fresh(event: AnyEvent, state: RunState) -> Announcement | None:
    match event:
        case SwitchFailed():
            return Announcement("\n".join(event.problems), f"no switch to {event.to_preset}", seconds=None)
        case Failed():
            return Announcement(f"{in_words(event)}\n{_way_on(state)}", "the run cannot go on")
        case CheckpointFailed() | CheckpointDamaged() | RestoreFailed():
            return Announcement(in_words(event), "checkpoint")
        case Profiled():
            return Announcement(opened_by(event), profile(event), "information")
        case ProfileFailed():
            return Announcement(in_words(event), "profile")
        case Paused(problem=str(problem)):
            return Announcement(f"{problem}\nc: checkpoints · space: resume", f"paused after step {event.step:,}")
        case _:
            return None


def _way_on(state: RunState) -> str:
    if state.watched:
        return "it was only watched: start its program again"
    newest = state.newest
    return f"r restarts it from {f'the checkpoint of step {newest.step:,}' if newest else 'the beginning'}"


def last_words(run: str, state: RunState) -> list[str]:
    """What to say on the terminal once the UI has gone."""
    if state.phase is Phase.STOPPED:
        return [f"run {run} has ended after step {state.step:,}: look at it with `shardtui attach {run}`"]
    if not state.is_heard:
        return [f"run {run}: {problem}" for problem in state.problems]
    ends = "" if state.watched else f", `shardtui stop {run}` ends it"
    return [f"run {run} goes on training: `shardtui attach {run}` returns to it{ends}"]
