"""What is compiled ahead: while a core is free, one at a time, a few at most, and never in the way of a request."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.models.task import Task
from shardtui.engine.program.compile_queue import Urgency
from shardtui.engine.program.program import Program
from shardtui.engine.spec.config import ScheduledSwitch
from shardtui.engine.training.preparations import MOST_AHEAD, Preparations
from shardtui.engine.wire.events import AheadEnded, Event, PresetCompiled, PresetCompiling

from ..conftest import Known


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def compiler(task: Task, programs: dict[str, Program]) -> Iterator[Known]:
    compiler = Known(task, programs)
    yield compiler
    compiler.close()


@pytest.fixture
def preparations(compiler: Known, events: list[Event]) -> Preparations:
    return prepare(compiler, events)


def prepare(compiler: Known, events: list[Event], *switches: ScheduledSwitch) -> Preparations:
    return Preparations(compiler, switches, Cluster(), events.append, lambda: None)


def idle() -> bool:
    return True


def tell_until(preparations: Preparations, holds: Callable[[], object]) -> None:
    end = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
        preparations.tell()


def ended(events: list[Event]) -> list[tuple[str, bool]]:
    """What was compiled ahead, and whether it is ready."""
    return [(event.preset, event.problem is None) for event in events if isinstance(event, AheadEnded)]


def test_a_likely_preset_is_compiled_once_a_core_is_free(
    preparations: Preparations, programs: dict[str, Program], events: list[Event]
) -> None:
    preparations.expect("fsdp")
    preparations.compile_likely(programs["dp"], lambda: False)
    assert not events
    preparations.compile_likely(programs["dp"], idle)
    tell_until(preparations, lambda: ended(events))
    assert ended(events) == [("fsdp", True)]
    assert [event.preset for event in events if isinstance(event, PresetCompiled)] == ["fsdp"]
    assert all(event.ahead for event in events if isinstance(event, PresetCompiling))


def test_a_request_does_not_wait_for_what_is_likely(
    preparations: Preparations, programs: dict[str, Program], events: list[Event]
) -> None:
    preparations.expect("fsdp")
    preparations.compile_likely(programs["dp"], idle)
    preparations.ask("tp", programs["dp"])
    assert ended(events) == [("fsdp", False)]
    tell_until(preparations, lambda: preparations.take_asked(preparations.ready() or ""))


def test_a_request_for_what_is_likely_is_no_longer_ahead(
    preparations: Preparations, programs: dict[str, Program], events: list[Event]
) -> None:
    preparations.expect("fsdp")
    preparations.compile_likely(programs["dp"], idle)
    preparations.ask("fsdp", programs["dp"])
    asked = len(events)
    tell_until(preparations, lambda: preparations.take_asked(preparations.ready() or ""))
    assert not any(event.ahead for event in events[asked:] if isinstance(event, PresetCompiling))
    assert all(ready for _, ready in ended(events))


def test_what_is_switched_to_is_not_told_to_be_compiled_any_more(
    preparations: Preparations, programs: dict[str, Program], events: list[Event]
) -> None:
    preparations.ask("fsdp", programs["dp"])
    asked = preparations.take_asked("fsdp")
    assert asked
    wait([asked.ready])
    assert preparations.finished(asked).program is programs["fsdp"]
    compiling = [event for event in events if isinstance(event, PresetCompiling)]
    assert [event.phase for event in compiling] == ["wait", "movers"]
    preparations.tell()
    assert [event for event in events if isinstance(event, PresetCompiling)] == compiling


def test_what_is_scheduled_is_compiled_ahead_and_told_once(
    compiler: Known, programs: dict[str, Program], events: list[Event]
) -> None:
    preparations = prepare(compiler, events, ScheduledSwitch(1000, "fsdp"))
    for _ in range(2):
        preparations.look_ahead(programs["dp"])
    tell_until(preparations, lambda: ended(events))
    preparations.tell()
    assert ended(events) == [("fsdp", True)]
    assert [event.ahead for event in events if isinstance(event, PresetCompiling)] == [True, True]


def test_a_likely_preset_is_compiled_while_a_scheduled_switch_that_is_ready_waits(
    compiler: Known, programs: dict[str, Program], events: list[Event]
) -> None:
    preparations = prepare(compiler, events, ScheduledSwitch(1000, "fsdp"))
    preparations.look_ahead(programs["dp"])
    tell_until(preparations, lambda: ended(events))
    preparations.expect("tp")
    preparations.compile_likely(programs["dp"], idle)
    tell_until(preparations, lambda: ("tp", True) in ended(events))


def test_what_was_asked_for_and_is_not_wanted_any_more_is_never_compiled(
    preparations: Preparations, compiler: Known, programs: dict[str, Program], events: list[Event]
) -> None:
    """However many are asked for: at most one has begun when the last is asked for, and that one ends early."""
    presets = [name for name in programs if name not in ("dp", "tp")]
    first, *others = presets
    begun, go_on = threading.Event(), threading.Event()
    busy = compiler.queue.submit(Urgency.ASKED, lambda: begun.set() or go_on.wait(60))
    assert begun.wait(60)
    for name in (first, *others * 20, "tp"):
        preparations.ask(name, programs["dp"])
    go_on.set()
    busy.result()
    asked = preparations.take_asked("tp")
    assert asked
    wait([asked.ready], 60)
    preparations.finished(asked)
    compiled = {event.preset for event in events if isinstance(event, PresetCompiling) and event.phase != "wait"}
    assert compiled == {"tp"}


def test_few_are_compiled_ahead_before_one_is_used(
    preparations: Preparations, programs: dict[str, Program], events: list[Event]
) -> None:
    likely = [name for name in programs if name != "dp"][: MOST_AHEAD + 1]
    for name in likely:
        preparations.expect(name)
        preparations.compile_likely(programs["dp"], idle)
        tell_until(preparations, lambda name=name: (name, True) in ended(events) or name == likely[-1])
    assert ended(events) == [(name, True) for name in likely[:-1]]
    preparations.ask(likely[0], programs["dp"])
    tell_until(preparations, lambda: preparations.take_asked(preparations.ready() or ""))
    preparations.compile_likely(programs["dp"], idle)
    tell_until(preparations, lambda: len(ended(events)) > MOST_AHEAD)
    assert ended(events)[-1] == (likely[-1], True)
