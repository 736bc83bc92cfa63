"""Compiling ahead: only while a core is free, one at a time, and never delaying a request."""

import threading
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


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def compiler(task: Task, programs: dict[str, Program]) -> Iterator[Known]:
    compiler = Known(task, programs)
    yield compiler
    compiler.close()


@pytest.fixture
def compiles(compiler: Known, events: list[Event]) -> BackgroundCompiles:
    return prepare(compiler, events)


def prepare(compiler: Known, events: list[Event], *switches: ScheduledSwitch) -> BackgroundCompiles:
    return BackgroundCompiles(compiler, switches, events.append, lambda: None)


def idle() -> bool:
    return True


def report_until(compiles: BackgroundCompiles, holds: Callable[[], object]) -> None:
    awaited(lambda: compiles.report() or holds(), "what is compiled")


def ended(events: list[Event]) -> list[tuple[str, bool]]:
    return [(event.preset, event.problem is None) for event in events if isinstance(event, AheadEnded)]


def test_a_likely_preset_is_compiled_when_a_core_is_free(
    compiles: BackgroundCompiles, programs: dict[str, Program], events: list[Event]
) -> None:
    compiles.expect("fsdp")
    compiles.compile_likely(programs["dp"], lambda: False)
    assert not events
    compiles.compile_likely(programs["dp"], idle)
    report_until(compiles, lambda: ended(events))
    assert ended(events) == [("fsdp", True)]
    assert [event.preset for event in events if isinstance(event, PresetCompiled)] == ["fsdp"]
    assert all(event.ahead for event in events if isinstance(event, PresetCompiling))


@pytest.mark.parametrize("requested", ["fsdp-tp2", "fsdp"])
def test_a_request_does_not_wait_for_a_likely_preset_and_may_be_for_it(
    compiles: BackgroundCompiles, programs: dict[str, Program], events: list[Event], requested: str
) -> None:
    compiles.expect("fsdp")
    compiles.compile_likely(programs["dp"], idle)
    compiles.request(requested, programs["dp"])
    before = len(events)
    assert ended(events) == [("fsdp", False)] * (requested != "fsdp")
    report_until(compiles, lambda: compiles.take_requested(compiles.ready() or ""))
    assert not any(event.ahead for event in events[before:] if isinstance(event, PresetCompiling))
    assert requested != "fsdp" or all(ready for _, ready in ended(events))


def test_a_cancelled_switch_is_reported_and_never_becomes_ready(
    compiles: BackgroundCompiles, programs: dict[str, Program], events: list[Event]
) -> None:
    compiles.cancel()
    assert not events
    compiles.request("fsdp", programs["dp"])
    compiles.cancel()
    assert events[-1] == SwitchCancelled(to_preset="fsdp")
    assert (compiles.ready(), compiles.take_requested("fsdp")) == (None, None)


def test_phases_of_a_finished_switch_are_not_reported_again(
    compiles: BackgroundCompiles, programs: dict[str, Program], events: list[Event]
) -> None:
    compiles.request("fsdp", programs["dp"])
    requested = compiles.take_requested("fsdp")
    assert requested
    wait([requested.ready])
    assert compiles.finished(requested).program is programs["fsdp"]
    compiling = [event for event in events if isinstance(event, PresetCompiling)]
    assert [event.phase for event in compiling] == ["wait", "transfers"]
    compiles.report()
    assert [event for event in events if isinstance(event, PresetCompiling)] == compiling


def test_a_scheduled_switch_is_compiled_ahead_and_reported_once_and_then_a_likely_preset(
    compiler: Known, programs: dict[str, Program], events: list[Event]
) -> None:
    compiles = prepare(compiler, events, ScheduledSwitch(1000, "fsdp"))
    for _ in range(2):
        compiles.compile_scheduled(programs["dp"])
    report_until(compiles, lambda: ended(events))
    compiles.report()
    assert ended(events) == [("fsdp", True)]
    assert [event.ahead for event in events if isinstance(event, PresetCompiling)] == [True, True]
    compiles.expect("fsdp-tp2")
    compiles.compile_likely(programs["dp"], idle)
    report_until(compiles, lambda: ("fsdp-tp2", True) in ended(events))


def test_replaced_requests_are_never_compiled(
    compiles: BackgroundCompiles, compiler: Known, programs: dict[str, Program], events: list[Event]
) -> None:
    """However many are requested, at most one has begun when the last is requested, and that one ends early."""
    presets = [name for name in programs if name not in ("dp", "fsdp-tp2")]
    first, *others = presets
    begun, proceed = threading.Event(), threading.Event()
    busy = compiler.queue.submit(Urgency.REQUESTED, lambda: begun.set() or proceed.wait(60))
    assert begun.wait(60)
    for name in (first, *others * 20, "fsdp-tp2"):
        compiles.request(name, programs["dp"])
    proceed.set()
    busy.result()
    requested = compiles.take_requested("fsdp-tp2")
    assert requested
    wait([requested.ready], 60)
    compiles.finished(requested)
    compiled = {event.preset for event in events if isinstance(event, PresetCompiling) and event.phase != "wait"}
    assert compiled == {"fsdp-tp2"}
