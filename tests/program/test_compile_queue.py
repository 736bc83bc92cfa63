"""The compile queue's order, and the programs that are kept."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from shardtui.engine.program.compile_queue import CompileQueue, Urgency
from shardtui.engine.program.compiler import MIN_PROGRAMS, KeptPrograms


@pytest.fixture
def queue() -> Iterator[CompileQueue]:
    queue = CompileQueue()
    yield queue
    queue.close()


def busy(queue: CompileQueue, *urgencies: Urgency) -> threading.Event:
    """Runs jobs until the returned event is set, by default one in each thread."""
    end = threading.Event()
    for urgency in urgencies or (Urgency.REQUESTED, Urgency.REQUESTED):
        started = threading.Event()
        queue.submit(urgency, lambda started=started: (started.set(), end.wait(60)))
        assert started.wait(60)
    return end


def test_jobs_run_by_urgency_and_then_in_order(queue: CompileQueue) -> None:
    end, done = busy(queue, Urgency.INSPECT, Urgency.REQUESTED), []
    kinds = (Urgency.LIKELY, Urgency.INSPECT, Urgency.SCHEDULED, Urgency.REQUESTED)
    jobs = [(kind, number) for number in range(2) for kind in kinds]
    futures = [queue.submit(job[0], lambda job=job: done.append(job)) for job in jobs]
    end.set()
    for future in futures:
        future.result(60)
    assert sorted(done[:2]) == [(Urgency.REQUESTED, 0), (Urgency.REQUESTED, 1)], "in two threads at once"
    later = (Urgency.SCHEDULED, Urgency.INSPECT, Urgency.LIKELY)
    assert done[2:] == [(kind, number) for kind in later for number in range(2)]


def test_a_cancelled_job_never_starts_and_a_failed_one_does_not_end_the_queue(queue: CompileQueue) -> None:
    end, done = busy(queue), []
    futures = [queue.submit(Urgency.REQUESTED, lambda number=number: done.append(number)) for number in range(300)]
    assert all(future.cancel() for future in futures[:-1])
    end.set()
    futures[-1].result(60)
    assert done == [len(futures) - 1]
    failed = queue.submit(Urgency.REQUESTED, lambda: 1 / 0)
    assert isinstance(failed.exception(60), ZeroDivisionError)
    assert queue.submit(Urgency.REQUESTED, lambda: 7).result(60) == 7


@pytest.mark.parametrize("running", [Urgency.INSPECT, Urgency.LIKELY, Urgency.SCHEDULED])
def test_a_request_does_not_wait_for_a_running_background_job(queue: CompileQueue, running: Urgency) -> None:
    end = busy(queue, running)
    other = queue.submit(Urgency.INSPECT, lambda: 1)
    started = queue.started
    assert queue.submit(Urgency.REQUESTED, lambda: 7).result(60) == 7
    assert queue.started == started + 1
    assert not other.done(), "only a request runs at the same time"
    end.set()
    assert other.result(60) == 1


@dataclass(frozen=True)
class Sized:
    name: str
    host_bytes: int


def keep(limit: int, *sizes: int) -> Any:
    kept = KeptPrograms(limit)
    for number, size in enumerate(sizes):
        kept.add(Sized(str(number), size))  # type: ignore[arg-type]
    return kept


def test_the_least_recently_used_programs_are_evicted_by_size_but_the_latest() -> None:
    kept = keep(300, 100, 100, 100)
    assert kept.get("0").name == "0"
    assert kept.add(Sized("3", 100))
    assert (kept.presets, kept.bytes, "1" in kept) == (["2", "0", "3"], 300, False)
    assert kept.get("1") is None
    assert keep(1000, *[10] * 100).presets == [str(number) for number in range(100)]
    assert keep(1000, 300, 300, 300, 900).presets == ["2", "3"]
    assert keep(0, 10, 10, 10).presets == ["1", "2"]
    assert MIN_PROGRAMS == 2
