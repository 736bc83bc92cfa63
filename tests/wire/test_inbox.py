"""The queue of commands is bounded and ordered, and a stop overtakes all others."""

import threading

from shardtui.engine.wire.commands import (
    AddPreset,
    AnyCommand,
    InspectPreset,
    Pause,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from shardtui.engine.wire.inbox import MAX_WAITING, Inbox


def filled(*commands: AnyCommand) -> Inbox:
    inbox = Inbox()
    for command in commands:
        assert inbox.put(command) is None
    return inbox


def test_only_the_latest_of_many_switches_is_kept() -> None:
    inbox = filled(*(SwitchPreset("fsdp" if number % 2 else "tp") for number in range(10_000)))
    assert inbox.take(block=False) == [SwitchPreset("fsdp")]
    assert inbox.take(block=False) == []


def test_commands_keep_their_order_and_equal_ones_are_merged_but_for_single_steps() -> None:
    commands = [Pause(), SwitchPreset("tp"), SaveCheckpoint(), Pause(), RestoreCheckpoint(1), RestoreCheckpoint(2)]
    kept = [SwitchPreset("tp"), SaveCheckpoint(), Pause(), RestoreCheckpoint(2)]
    assert filled(*commands).take(block=False) == kept
    steps = [StepOnce(), StepOnce(), Resume()]
    assert filled(*steps).take(block=False) == steps


def test_one_command_of_a_kind_is_taken_between_two_steps() -> None:
    inbox = filled(AddPreset("a", "text"), AddPreset("b", "text"), Pause())
    assert inbox.take(block=False) == [AddPreset("a", "text")]
    assert inbox.take(block=True) == [AddPreset("b", "text"), Pause()], "it does not block: the queue is not empty"


def test_a_full_queue_refuses_commands_except_a_stop() -> None:
    inbox = Inbox()
    refusals = [inbox.put(InspectPreset(f"p{number}")) for number in range(MAX_WAITING + 10)]
    assert refusals[:MAX_WAITING] == [None] * MAX_WAITING
    assert all(f"{MAX_WAITING} commands are already waiting" in (refusal or "") for refusal in refusals[MAX_WAITING:])
    assert inbox.put(Stop()) is None
    assert inbox.take(block=True) == [Stop()]
    assert inbox.is_stopping


def test_a_stop_ends_a_wait_for_a_compilation() -> None:
    inbox, looks = Inbox(), []
    threading.Timer(0.1, inbox.wake).start()
    threading.Timer(0.3, inbox.put, [Stop()]).start()
    assert inbox.is_stopped_before(lambda: False, lambda: looks.append(inbox.is_idle))
    assert looks == [False, False], "at each wake, and not while it waits"
    assert not Inbox().is_stopped_before(lambda: True, lambda: None)
