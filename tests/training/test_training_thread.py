"""What the training thread does, read from its frames, and when a step is late."""

import importlib
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from shardtui.engine.training import locations, training_thread
from shardtui.engine.training.training_thread import TrainingThread
from shardtui.engine.wire.events import StepsDone, Switched, TrainingStarted
from shardtui.engine.wire.hosts import Doing
from shardtui.engine.wire.inbox import Inbox

MODULES = {
    "Loop": "training.loop",
    "StepReports": "training.step_reports",
    "Stopping": "training.stopping",
    "Restorer": "training.restorer",
    "Switcher": "training.switcher",
    "Saver": "checkpoint.saver",
    "Evaluator": "training.evaluator",
    "TextSampler": "training.sampling",
    "Profiler": "training.profiler",
    "Inbox": "wire.inbox",
}
SWITCHED = Switched("dp", "tp", 5, 1, 0, 0.1, 0.1, True, None)  # type: ignore[misc]


@pytest.mark.parametrize("name", locations.DOING)
def test_the_methods_by_which_activities_are_recognized_exist(name: str) -> None:
    owner, _, method = name.partition(".")
    found = getattr(importlib.import_module(f"shardtui.engine.{MODULES[owner]}"), owner)
    assert vars(found)[method].__code__.co_qualname == name


found: list[tuple[Doing, bool]] = []
"""What `see` has seen."""


def see(*_: Any) -> None:
    frames = sys._current_frames()
    found.append((locations.doing(frames), locations.waits(frames)))


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    found.clear()


def test_the_innermost_known_method_tells_what_is_done() -> None:
    inbox = Inbox()
    inbox._wait = see  # type: ignore[method-assign]
    inbox.take(block=True)
    see()
    assert [doing for doing, _ in found] == ["idle", "starting"]


def test_tracing_is_compiling_and_a_callback_of_jax_is_not_waiting() -> None:
    jax.jit(lambda x: (see(), x)[1])(1.0)
    assert found[0][0] == "compiling"
    found.clear()
    jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(lambda y: (see(), y)[1], x, x))(jnp.ones(())))
    assert not found[0][1], "code of the user's runs"


def test_a_thread_that_waits_for_a_device_waits() -> None:
    """Looked at from another thread until the device is done."""
    squares = jax.jit(lambda x: jax.lax.fori_loop(0, 3000, lambda _, y: y @ y, x)).lower(jnp.ones((128, 128))).compile()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            see()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        float(squares(jnp.ones((128, 128)))[0, 0])
    finally:
        is_over.set()
        watcher.join()
    assert any(waits for _, waits in found)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(training_thread, "time", made)
    return made


class Trains(TrainingThread):
    """A training thread in a step, on a clock of the test's."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(None)
        self.clock = clock
        monkeypatch.setattr(training_thread, "doing", lambda _: "step")

    def late_after(self, begun: int) -> float:
        """Returns the seconds until the step is late, looking twice a second."""
        began = self.clock.now
        while not self.look(begun).is_late:
            self.clock.now += 0.5
        return self.clock.now - began


def done(*seconds: float) -> StepsDone:
    return StepsDone(step=3, losses=[1.0] * len(seconds), step_seconds=list(seconds), input_wait_seconds=None)


def test_a_step_is_late_after_20_s_or_five_slow_steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Trains(clock, monkeypatch)
    assert thread.late_after(1) == 300.0, "the first step"
    thread.note(done(9.0))
    assert thread.late_after(2) == 300.0, "the first step says nothing about the others"
    thread.note(done(0.1, 0.2))
    assert thread.late_after(3) == 20.0
    thread.note(done(6.0))
    thread.note(done(0.1))
    assert thread.late_after(4) == 30.0
    thread.note(SWITCHED)
    assert [thread.late_after(begun) for begun in (6, 7)] == [300.0, 300.0], "the first steps under another preset"


def test_a_step_is_late_before_any_is_reported(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are reported twice a second: many may have been trained."""
    thread = Trains(clock, monkeypatch)
    thread.note(TrainingStarted(preset="dp", step=100))
    clock.now += 0.4
    assert thread.late_after(130) == 20.0
    thread.note(TrainingStarted(preset="dp", step=200))
    clock.now += 6.0
    assert thread.late_after(203) == 30.0, "one of these steps may have taken all of that time"


def test_time_in_which_the_process_was_stopped_does_not_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Trains(clock, monkeypatch)
    thread.note(done(0.1, 0.1))
    thread.look(4)
    clock.now += 3600
    assert not thread.look(4).is_late
    assert thread.look(4).seconds == training_thread.LONGEST_POLL_SECONDS


def test_a_late_step_has_a_location(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Trains(clock, monkeypatch)
    thread.note(done(0.1, 0.1))
    assert thread.look(4).where == ""
    thread.late_after(4)
    assert thread.look(4).where.startswith("look (training/training_thread.py:")
