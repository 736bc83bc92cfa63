"""Commands wait in bounded number, in order, and a stop is never behind them."""

import threading

from shardtui.engine.wire.commands import (
    AddPreset,
    InspectPreset,
    Pause,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from shardtui.engine.wire.inbox import MOST_WAITING, Inbox


def test_ten_thousand_alternating_switches_are_one() -> None:
    inbox = Inbox()
    for number in range(10_000):
        assert inbox.put(SwitchPreset("fsdp" if number % 2 else "tp")) is None
    assert inbox.take(block=False) == [SwitchPreset("fsdp")]
    assert inbox.take(block=False) == []


def test_commands_of_different_kinds_keep_their_order_and_equal_ones_are_one() -> None:
    inbox = Inbox()
    commands = [Pause(), SwitchPreset("tp"), SaveCheckpoint(), Pause(), RestoreCheckpoint(1), RestoreCheckpoint(2)]
    for command in commands:
        inbox.put(command)
    assert inbox.take(block=False) == [SwitchPreset("tp"), SaveCheckpoint(), Pause(), RestoreCheckpoint(2)]


def test_of_what_takes_time_one_is_done_between_two_steps() -> None:
    inbox = Inbox()
    for name in ("a", "b"):
        inbox.put(AddPreset(name, "text"))
    inbox.put(Pause())
    assert inbox.take(block=False) == [AddPreset("a", "text")]
    assert inbox.take(block=True) == [AddPreset("b", "text"), Pause()], "it does not wait: there are some"


def test_each_single_step_counts() -> None:
    inbox = Inbox()
    for command in (StepOnce(), StepOnce(), Resume()):
        inbox.put(command)
    assert inbox.take(block=False) == [StepOnce(), StepOnce(), Resume()]


def test_what_is_over_the_bound_is_refused_and_a_stop_is_not() -> None:
    inbox = Inbox()
    refusals = [inbox.put(InspectPreset(f"p{number}")) for number in range(MOST_WAITING + 10)]
    assert refusals[:MOST_WAITING] == [None] * MOST_WAITING
    assert all(f"{MOST_WAITING} commands wait already" in (refusal or "") for refusal in refusals[MOST_WAITING:])
    assert inbox.put(Stop()) is None
    assert inbox.take(block=True) == [Stop()]
    assert inbox.stopped_at is not None


def test_a_stop_ends_a_wait_for_a_compilation() -> None:
    inbox, looks = Inbox(), []
    threading.Timer(0.1, inbox.wake).start()
    threading.Timer(0.3, inbox.put, [Stop()]).start()
    assert inbox.is_stopped_before(lambda: False, lambda: looks.append(inbox.is_awaited))
    assert looks == [False, False], "at each wake, and not while it waits"
    assert not Inbox().is_stopped_before(lambda: True, lambda: None)
