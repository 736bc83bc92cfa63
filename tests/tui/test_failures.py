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
    ("lasts", "events"),
    [
        (False, (SAVE_FAILED, steps(8, 1.0), SAVED, STOPPED)),
        (False, (SAVE_FAILED, restored(2), STOPPED)),
        (False, (SWITCH_FAILED, switched(to_preset="tp"), STOPPED)),
        (False, (LOST, started(), STOPPED)),
        (False, (LOST, steps(8, 1.0), STOPPED)),
        (False, (PAUSED, started(), STOPPED)),
        (False, (DAMAGED, restored(2), STOPPED)),
        (True, (SAVED, SAVE_FAILED, STOPPED)),
        (True, (SAVE_FAILED, started(), STOPPED)),
        (True, (SWITCH_FAILED, switched(to_preset="fsdp"), STOPPED)),
        (True, (SWITCH_FAILED, started(), SAVED, STOPPED)),
        (True, (SAVED, LOST)),
        (True, (PAUSED, SAVED, STOPPED)),
    ],
)
def test_a_failure_lasts_unless_what_failed_succeeds_later(lasts: bool, events: tuple[AnyEvent, ...]) -> None:
    failures = Failures()
    for event in events:
        failures.add(event)
    assert bool(failures) is lasts
