"""The most urgent goes first, of requests the latest, and what is cancelled not at all."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from shardtui.engine.program.compile_queue import CompileQueue, Urgency
from shardtui.engine.program.kept_programs import FEWEST, KeptPrograms


@pytest.fixture
def queue() -> Iterator[CompileQueue]:
    queue = CompileQueue()
    yield queue
    queue.close()


def busy(queue: CompileQueue, *urgencies: Urgency) -> threading.Event:
    """Jobs that run until the event is set, by default as many as run at once."""
    end = threading.Event()
    for urgency in urgencies or (Urgency.ASKED, Urgency.ASKED):
        begun = threading.Event()
        queue.submit(urgency, lambda begun=begun: (begun.set(), end.wait(60)))
        assert begun.wait(60)
    return end


def test_what_goes_first(queue: CompileQueue) -> None:
    end, done = busy(queue, Urgency.LOOK, Urgency.ASKED), []
    kinds = (Urgency.LIKELY, Urgency.LOOK, Urgency.SCHEDULED, Urgency.ASKED)
    jobs = [(kind, number) for number in range(2) for kind in kinds]
    futures = [queue.submit(job[0], lambda job=job: done.append(job)) for job in jobs]
    end.set()
    for future in futures:
        future.result(60)
    assert sorted(done[:2]) == [(Urgency.ASKED, 0), (Urgency.ASKED, 1)], "by two threads"
    assert done[2:] == [
        (Urgency.SCHEDULED, 0),
        (Urgency.SCHEDULED, 1),
        (Urgency.LOOK, 0),
        (Urgency.LOOK, 1),
        (Urgency.LIKELY, 0),
        (Urgency.LIKELY, 1),
    ]


def test_what_is_cancelled_before_it_begins_never_runs(queue: CompileQueue) -> None:
    end, done = busy(queue), []
    futures = [queue.submit(Urgency.ASKED, lambda number=number: done.append(number)) for number in range(300)]
    assert all(future.cancel() for future in futures[:-1])
    end.set()
    futures[-1].result(60)
    assert done == [299]


def test_a_failure_is_the_futures_own_and_the_next_job_runs(queue: CompileQueue) -> None:
    failed = queue.submit(Urgency.ASKED, lambda: 1 / 0)
    assert isinstance(failed.exception(60), ZeroDivisionError)
    assert queue.submit(Urgency.ASKED, lambda: 7).result(60) == 7


@pytest.mark.parametrize("running", [Urgency.LOOK, Urgency.LIKELY, Urgency.SCHEDULED])
def test_what_the_user_asks_for_waits_for_nothing_that_runs_in_the_background(
    queue: CompileQueue, running: Urgency
) -> None:
    end = busy(queue, running)
    other = queue.submit(Urgency.LOOK, lambda: 1)
    begun = queue.begun
    assert queue.submit(Urgency.ASKED, lambda: 7).result(60) == 7
    assert queue.begun == begun + 1
    assert not other.done(), "only that goes beside it"
    end.set()
    assert other.result(60) == 1


def test_two_threads_however_many_jobs(queue: CompileQueue) -> None:
    asked = {queue.submit(Urgency.ASKED, threading.get_ident).result(60) for _ in range(20)}
    others = {queue.submit(Urgency.LOOK, threading.get_ident).result(60) for _ in range(20)}
    assert (len(asked | others), len(others)) == (2, 1)


@dataclass(frozen=True)
class Sized:
    """As much of a program as is kept by."""

    name: str
    host_bytes: int


def keep(limit: int, *sizes: int) -> Any:
    kept = KeptPrograms(limit)
    for number, size in enumerate(sizes):
        kept.add(Sized(str(number), size))  # type: ignore[arg-type]
    return kept


def test_the_least_recently_used_goes_first() -> None:
    kept = keep(300, 100, 100, 100)
    assert kept.get("0").name == "0"
    assert kept.add(Sized("3", 100))
    assert (kept.presets, kept.bytes, "1" in kept) == (["2", "0", "3"], 300, False)
    assert kept.get("1") is None


def test_by_size_not_by_number() -> None:
    assert keep(1000, *[10] * 100).presets == [str(number) for number in range(100)]
    assert keep(1000, 300, 300, 300, 900).presets == ["2", "3"]


def test_the_active_one_and_the_one_before_are_kept_whatever_their_size() -> None:
    assert len(keep(0, 10, 10, 10).presets) == FEWEST
