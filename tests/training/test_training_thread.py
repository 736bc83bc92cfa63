"""Where the training thread is, read from its frames, and when a step is late."""

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from shardtui.engine.base import processes
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.training import training_thread
from shardtui.engine.training.step_reports import StepReports
from shardtui.engine.training.training_thread import StallTimer, TrainingThread, locate
from shardtui.engine.wire.events import StepsDone, Switched

SWITCHED = Switched("dp", "tp", 5, 1, 0, 0.1, 0.1, True, None)  # type: ignore[misc]


def test_a_batch_function_that_compiles_is_told_from_a_step() -> None:
    seen: list[bool] = []

    def traced(x: jax.Array) -> jax.Array:
        seen.append(locate(in_step=True).compiles)
        return x

    jax.jit(traced)(1.0)
    assert (seen, locate(in_step=True).compiles) == ([True], False)


def test_losses_are_read_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, seen = Cluster(), list[bool]()
    reports = StepReports(lambda _: None, lambda: None, cluster)
    reports.add({"loss": jnp.ones(())}, 0.0)
    get = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: seen.append(cluster.in_step) or get(x))
    reports.flush()
    assert [*seen, cluster.in_step] == [True, False]


NOT_ASCII = "größe 🧪.py"


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    scope: dict[str, Any] = {}
    exec(compile("def calls(function):\n    return function()\n", str(tmp_path / NOT_ASCII), "exec"), scope)
    return scope["calls"]


def test_the_place_is_in_code_that_training_waits_for(theirs: Any, tmp_path: Path) -> None:
    """A user's own thread, such as one that prefetches data, does not count."""
    assert theirs(training_thread._awaited_stacks)[0][1] == (str(tmp_path / NOT_ASCII), 2, "calls")
    event = threading.Event()
    thread = threading.Thread(target=theirs, args=(event.wait,))
    thread.start()
    try:
        assert len(training_thread._awaited_stacks()) == 1
    finally:
        event.set()
        thread.join()


def test_a_thread_that_waits_for_a_device_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at from another thread until the device is done."""
    monkeypatch.setattr(training_thread, "_is_user_code", lambda _: False)  # the test is
    squares = jax.jit(lambda x: jax.lax.fori_loop(0, 3000, lambda _, y: y @ y, x)).lower(jnp.ones((128, 128))).compile()
    is_over, seen = threading.Event(), list[bool]()

    def look() -> None:
        while not is_over.is_set():
            seen.append(locate(in_step=True).waits)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        float(squares(jnp.ones((128, 128)))[0, 0])
    finally:
        is_over.set()
        watcher.join()
    assert any(seen)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(processes, "time", made)
    return made


class Trains(TrainingThread):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def late_after(self, begun: int) -> float:
        self.look(begun, True)
        began = self.clock.now
        while not self.look(begun, True).is_late:
            self.clock.now += 0.5
        return self.clock.now - began


def done(*seconds: float) -> StepsDone:
    return StepsDone(step=3, losses=[1.0] * len(seconds), step_seconds=list(seconds), input_wait_seconds=None)


def test_a_step_is_late_after_20_s_or_five_slow_steps_of_a_process_that_runs(clock: Clock) -> None:
    thread = Trains(clock)
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
    thread = Trains(clock)
    thread.note(done(0.1, 0.1))
    thread.look(4, True)
    clock.now += 3600
    activity = thread.look(4, True)
    assert (activity.is_late, activity.seconds) == (False, training_thread.LONGEST_POLL_SECONDS)


def test_a_stall_is_said_after_30_s_or_three_slow_steps_and_at_each_doubling(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_thread, "time", clock)

    def due(step_seconds: float) -> list[float]:
        timer, found = StallTimer(), []
        for _ in range(300):
            clock.now += 1.0
            if timer.is_due(step_seconds):
                found.append(timer.seconds)
        assert not timer.is_due(step_seconds, is_idle=True)
        clock.now += 1.0
        assert not timer.is_due(step_seconds)
        return found

    assert due(0.1) == [30.0, 60.0, 120.0, 240.0]
    assert due(20.0) == [60.0, 120.0, 240.0]


@pytest.mark.parametrize(("step_seconds", "unread"), [(0.1, 10.0), (30.0, 60.0)])
def test_stacks_are_read_only_in_a_step_that_takes_long(clock: Clock, step_seconds: float, unread: float) -> None:
    thread, found = Trains(clock), dict[float, str]()
    thread.note(done(step_seconds, step_seconds))
    for _ in range(200):
        found[clock.now] = thread.look(4, True).where
        clock.now += 0.5
    assert min(at for at, where in found.items() if where) == unread
    assert not thread.look(5, True).where
