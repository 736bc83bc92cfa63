"""Announcements of events over every view: above all of failures."""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ...engine.spec.attempt import Attempt, LostProcess
from ...engine.wire.events import (
    AnyEvent,
    CommandRefused,
    Disconnected,
    EngineLost,
    EngineReady,
    EngineStarted,
    Failed,
    Level,
    Paused,
    Profiled,
    SwitchFailed,
)
from ...engine.wire.framing import VERSION
from .run_state import Phase, RunState

if TYPE_CHECKING:  # the first frame does not wait for it
    from .comparison import Comparison


class Announcement(Struct, frozen=True):
    """A notice about an event, or about the end of a comparison."""

    text: str
    title: str = ""
    severity: Literal["information", "warning", "error"] = "error"


def announcement(event: AnyEvent, state: RunState, opened: float) -> Announcement | None:
    """Returns the announcement of an event; None if it needs none.

    Events from before the viewer was `opened` (in seconds since the epoch) are announced only if they say how the run
    ended.
    """
    if isinstance(event, EngineLost):
        return _failure(event, state)
    if isinstance(event, Disconnected):
        return Announcement(event.reason, "disconnected")
    if isinstance(event, CommandRefused):
        return Announcement(event.problem, severity="warning")
    if isinstance(event, EngineStarted) and event.protocol > VERSION:
        newer = f"recorded with protocol {event.protocol}, this viewer supports up to {VERSION}"
        return Announcement(f"{newer}: newer events are left out: update shardtui", severity="warning")
    if isinstance(event, EngineReady) and event.warnings:
        return Announcement("\n".join(event.warnings), severity="warning")
    return _live_announcement(event, state) if event.time >= opened else None


def _live_announcement(event: AnyEvent, state: RunState) -> Announcement | None:
    match event:
        case SwitchFailed():
            return Announcement("\n".join(event.problems), f"switch to {event.to_preset} failed")
        case Failed():
            return _failure(event, state)
        case EngineStarted(attempt=Attempt(lost=LostProcess(process=process, why=why)) as attempt):
            left = attempt.remaining and f"\n{attempt.remaining} go on"
            return Announcement(f"process {process} was lost: {why}{left}", "resuming", "warning")
        case Profiled():
            found = "9 shows where the time went" if event.breakdown else f"not read: {event.problem}"
            return Announcement(f"{found}\nin xprof: {event.opened_by}", event.title, "information")
        case Paused(problem=str(problem)):
            where = "N: where it comes from · " * (
                state.nonfinite is not None and state.nonfinite.step == event.step + 1
            )
            keys = f"{where}c: checkpoints · space: resume"
            return Announcement(f"{problem}\n{keys}", f"paused after step {event.step:,}")
        case _ if event.TOPIC:
            return Announcement(event.line, event.TOPIC, "error" if event.level is Level.ERROR else "warning")
        case _:
            return None


def end_of_comparison(comparison: "Comparison", preset: str, is_shown: bool) -> Announcement | None:
    """Returns the announcement of a comparison's end; None if Compare `is_shown` and nothing went wrong.

    `preset` is the active one.
    """
    from .comparison import CANCELLED

    why = comparison.ended_by
    if is_shown and why in (None, CANCELLED):
        return None
    text = f"training under {preset} again; 6 shows the results" if not why or why == CANCELLED else why
    title = f"comparison {'cancelled' if why == CANCELLED else 'ended' if why else 'done'}"
    return Announcement(text, title, "warning" if why else "information")


def _failure(event: EngineLost | Failed, state: RunState) -> Announcement:
    if state.attempt and not (isinstance(event, Failed) and (event.refused or event.by_supervisor)):
        text = f"{event.line}\nits supervisor starts it again"
        return Announcement(text, "the engine has ended", "warning")
    return Announcement(f"{event.line}\n{_recovery_hint(state)}", "the run has failed")


def _recovery_hint(state: RunState) -> str:
    if state.watched:
        return "this run belongs to another program: start that program again"
    newest = state.newest
    return f"r resumes from {f'the checkpoint of step {newest.step:,}' if newest else 'the beginning'}"


def exit_lines(run: str, state: RunState) -> list[str]:
    """Returns the lines to print on the terminal after the UI has exited."""
    if state.playback:
        return []
    if state.phase is Phase.STOPPED:
        return [f"run {run} has ended after step {state.step:,}: look at it with `shardtui attach {run}`"]
    if not state.is_live:
        return [f"run {run}: {problem.removeprefix(f'run {run}: ')}" for problem in state.problems]
    stop = f"ssh {state.host} shardtui stop {run.rpartition(':')[2]}" if state.host else f"shardtui stop {run}"
    ends = "" if state.watched else f", `{stop}` ends it"
    return [f"run {run} keeps training: `shardtui attach {run}` returns to it{ends}"]
