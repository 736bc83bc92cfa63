"""What failed in a run and has not been made good, from its events."""

from ...engine.wire.events import (
    AnyEvent,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    Disconnected,
    EngineLost,
    EngineReady,
    EngineStarted,
    EngineStopped,
    Failed,
    HostsLost,
    Level,
    Restored,
    RestoreFailed,
    StepsDone,
    Switched,
    SwitchFailed,
)

ENGINE, SAVE = "the engine", "a save"


class Failures:
    def __init__(self) -> None:
        self._open: set[str] = set()

    def __bool__(self) -> bool:
        """Whether anything is lost: a failed save until a later one, a switch until the same one succeeds, an engine
        until another one works; any other error until the next engine."""
        return bool(self._open)

    def add(self, event: AnyEvent) -> None:
        match event:
            case EngineStarted():
                self._open = {each for each in self._open if each.startswith((SAVE, "switch"))}
            case EngineReady() | StepsDone() | EngineStopped():  # a full disk may lose the one before
                self._open.discard(ENGINE)
            case CheckpointSaved() | Restored():
                self._open.discard(SAVE)
            case Switched():
                self._open.discard(f"switch to {event.to_preset}")
            case _:
                pass
        if event.level is Level.ERROR and not isinstance(event, CheckpointDamaged | RestoreFailed):  # training goes on
            self._open.add(_failed(event))


def _failed(event: AnyEvent) -> str:
    match event:
        case Failed() | EngineLost() | HostsLost() | Disconnected():
            return ENGINE
        case CheckpointFailed():
            return SAVE
        case SwitchFailed():
            return f"switch to {event.to_preset}"
        case _:
            return type(event).__name__
