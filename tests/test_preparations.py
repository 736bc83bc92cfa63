"""What is compiled ahead: while a core is free, one at a time, a few at most, and never in the way of a request."""

import time
from collections.abc import Callable, Iterator

import pytest
from shardtui.engine.cluster import Cluster
from shardtui.engine.preparations import MOST_AHEAD, Preparations
from shardtui.engine.program import Program
from shardtui.engine.protocol import AheadEnded, Event, PresetCompiled, PresetCompiling
from shardtui.engine.task import Task

from .conftest import Known


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def preparations(task: Task, programs: dict[str, Program], events: list[Event]) -> Iterator[Preparations]:
    compiler = Known(task, programs)
    yield Preparations(compiler, (), Cluster(), events.append, lambda: None)
    compiler.close()


def idle() -> bool:
    return True


def tell_until(preparations: Preparations, holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
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
