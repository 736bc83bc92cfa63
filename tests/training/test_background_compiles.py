"""Compiling ahead: only while a core is free, one at a time, and never delaying a request."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest
from shardtui.engine.models.task import Task
from shardtui.engine.program.compile_queue import Urgency
from shardtui.engine.program.program import Program
from shardtui.engine.spec.config import ScheduledSwitch
from shardtui.engine.training.background_compiles import BackgroundCompiles
from shardtui.engine.wire.events import AheadEnded, Event, PresetCompiled, PresetCompiling, SwitchCancelled

from ..processes import awaited
from ..programs import Known


class Scene:
    """Compiles while `dp` trains, and keeps what is reported."""

    def __init__(self, compiler: Known, dp: Program, *switches: ScheduledSwitch) -> None:
        self.events: list[Event] = []
        self.compiler, self.dp = compiler, dp
        self.compiles = BackgroundCompiles(compiler, switches, self.events.append)

    def expect(self, preset: str, is_idle: bool = True) -> None:
        self.compiles.expect(preset)
        self.compiles.compile_likely(self.dp, lambda: is_idle)

    def request(self, preset: str) -> None:
        self.compiles.request(preset, self.dp)

    def report_until(self, holds: Callable[[], object]) -> None:
        awaited(lambda: self.compiles.report() or holds(), "what is compiled")

    @property
    def ended(self) -> list[tuple[str, bool]]:
        return [(event.preset, event.problem is None) for event in self.events if isinstance(event, AheadEnded)]

    @property
    def compiling(self) -> list[PresetCompiling]:
        return [event for event in self.events if isinstance(event, PresetCompiling)]


@pytest.fixture
def scene(task: Task, programs: dict[str, Program]) -> Iterator[Scene]:
    compiler = Known(task, programs)
    yield Scene(compiler, programs["dp"])
    compiler.close()


def test_a_likely_preset_is_compiled_when_a_core_is_free(scene: Scene) -> None:
    scene.expect("fsdp", is_idle=False)
    assert not scene.events
    scene.expect("fsdp")
    scene.report_until(lambda: scene.ended)
    assert scene.ended == [("fsdp", True)]
    assert [event.preset for event in scene.events if isinstance(event, PresetCompiled)] == ["fsdp"]
    assert all(event.ahead for event in scene.compiling)


@pytest.mark.parametrize("requested", ["fsdp-tp2", "fsdp"])
def test_a_request_does_not_wait_for_a_likely_preset_and_may_be_for_it(scene: Scene, requested: str) -> None:
    scene.expect("fsdp")
    scene.request(requested)
    before = len(scene.compiling)
    assert scene.ended == [("fsdp", False)] * (requested != "fsdp")
    scene.report_until(lambda: scene.compiles.take_requested(scene.compiles.ready() or ""))
    assert not any(event.ahead for event in scene.compiling[before:])
    assert requested != "fsdp" or all(ready for _, ready in scene.ended)


def test_a_cancelled_switch_is_reported_and_never_becomes_ready(scene: Scene) -> None:
    scene.compiles.cancel()
    assert not scene.events
    scene.request("fsdp")
    scene.compiles.cancel()
    assert scene.events[-1] == SwitchCancelled(to_preset="fsdp")
    assert (scene.compiles.ready(), scene.compiles.take_requested("fsdp")) == (None, None)


def test_a_finished_compilation_does_not_keep_its_program(scene: Scene) -> None:
    first = scene.compiles.first("fsdp")
    kept = weakref.ref(scene.compiles.finished(first))
    del first
    awaited(lambda: gc.collect() >= 0 and kept() is None, "the compiler's thread to let go of it, too")


def test_phases_of_a_finished_switch_are_not_reported_again(scene: Scene, programs: dict[str, Program]) -> None:
    scene.request("fsdp")
    requested = scene.compiles.take_requested("fsdp")
    assert requested
    wait([requested.ready])
    assert scene.compiles.finished(requested).program is programs["fsdp"]
    assert [event.phase for event in scene.compiling] == ["wait", "transfers"]
    scene.compiles.report()
    assert len(scene.compiling) == 2


def test_a_scheduled_switch_is_compiled_ahead_and_reported_once_and_then_a_likely_preset(scene: Scene) -> None:
    scene = Scene(scene.compiler, scene.dp, ScheduledSwitch(1000, "fsdp"))
    for _ in range(2):
        scene.compiles.compile_scheduled(scene.dp)
    scene.report_until(lambda: scene.ended)
    scene.compiles.report()
    assert scene.ended == [("fsdp", True)]
    assert [event.ahead for event in scene.compiling] == [True, True]
    scene.expect("fsdp-tp2")
    scene.report_until(lambda: ("fsdp-tp2", True) in scene.ended)


def test_replaced_requests_are_never_compiled(scene: Scene, programs: dict[str, Program]) -> None:
    """However many are requested, at most one has begun when the last is requested, and that one ends early."""
    first, *others = (name for name in programs if name not in ("dp", "fsdp-tp2"))
    begun, proceed = threading.Event(), threading.Event()
    busy = scene.compiler.queue.submit(Urgency.REQUESTED, lambda: begun.set() or proceed.wait(60))
    assert begun.wait(60)
    for name in (first, *others * 20, "fsdp-tp2"):
        scene.request(name)
    proceed.set()
    busy.result()
    requested = scene.compiles.take_requested("fsdp-tp2")
    assert requested
    wait([requested.ready], 60)
    scene.compiles.finished(requested)
    assert {event.preset for event in scene.compiling if event.phase != "wait"} == {"fsdp-tp2"}
