"""Which failures of a run are made good by what succeeds later."""

import pytest
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.events import AnyEvent
from shardtui.tui.state.failures import Failures

from ..recorded import restored, started, steps, switched

SAVE_FAILED = wire.CheckpointFailed(step=4, problems=["the disk is full"])
SAVED = wire.CheckpointSaved(step=8, bytes=1, arrays=1, seconds=1.0)
SWITCH_FAILED = wire.SwitchFailed(to_preset="tp", step=4, problems=["no memory"], preset="dp")
LOST = wire.EngineLost(reason="ended by SIGKILL")
PAUSED = wire.Paused(step=3, problem="the loss is not finite")
STOPPED = wire.EngineStopped(step=8, reason="stopped")
DAMAGED = wire.CheckpointDamaged(step=4, set_aside="4.damaged", problems=["a bit"])


@pytest.mark.parametrize(
    "events",
    [
        (SAVE_FAILED, steps(8, 1.0), SAVED, STOPPED),
        (SAVE_FAILED, restored(2), STOPPED),
        (SWITCH_FAILED, switched(to_preset="tp"), STOPPED),
        (LOST, started(), STOPPED),
        (LOST, steps(8, 1.0), STOPPED),
        (PAUSED, started(), STOPPED),
        (DAMAGED, restored(2), STOPPED),
    ],
)
def test_made_good(events: tuple[AnyEvent, ...]) -> None:
    assert not failed_in(events)


@pytest.mark.parametrize(
    "events",
    [
        (SAVED, SAVE_FAILED, STOPPED),
        (SAVE_FAILED, started(), STOPPED),
        (SWITCH_FAILED, switched(to_preset="fsdp"), STOPPED),
        (SWITCH_FAILED, started(), SAVED, STOPPED),
        (SAVED, LOST),
        (PAUSED, SAVED, STOPPED),
    ],
)
def test_lost(events: tuple[AnyEvent, ...]) -> None:
    assert failed_in(events)


def failed_in(events: tuple[AnyEvent, ...]) -> bool:
    failures = Failures()
    for event in events:
        failures.add(event)
    return bool(failures)
