"""A priority queue of compile jobs, run by two threads.

One thread runs all jobs, so that compiling takes one core from the steps and memory is bounded. A second one runs only
what the user waits for, as the first cannot interrupt its job.
"""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Urgency(IntEnum):
    """Why a job is compiled; the smallest value runs first."""

    REQUESTED = 0
    """The user waits for it."""
    SCHEDULED = 1
    """A scheduled switch needs it."""
    INSPECT = 2
    """A view shows it."""
    LIKELY = 3
    """The user is likely to request it next."""


@dataclass(frozen=True)
class Job:
    """A function to be run by a compile thread."""

    urgency: Urgency
    number: int
    """Counts jobs in the order of submission."""
    work: Callable[[], Any]
    future: Future[Any]
    """Gets the result or the exception of `work`."""

    @property
    def priority(self) -> tuple[int, int]:
        """The sort key, smallest first: by urgency; then the user's latest request, else the oldest job."""
        return self.urgency, -self.number if self.urgency == Urgency.REQUESTED else self.number


class CompileQueue:
    """Runs submitted jobs by priority.

    To drop a job, cancel its future. XLA cannot be interrupted: a job that has started runs to its end unless its
    `work` checks whether it is still wanted.
    """

    def __init__(self, on_done: Callable[[], None] = lambda: None) -> None:
        """`on_done` is called once a job is done, or dropped."""
        self._on_done = on_done
        self._jobs: list[Job] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False
        self._started = 0
        threading.Thread(target=self._run, args=(Urgency.LIKELY,), name="compiler", daemon=True).start()
        threading.Thread(target=self._run, args=(Urgency.REQUESTED,), name="requested compiler", daemon=True).start()

    def submit(self, urgency: Urgency, work: Callable[[], T]) -> Future[T]:
        """Queues `work` and returns the future of its result."""
        job = Job(urgency, next(self._numbers), work, Future())
        job.future.add_done_callback(lambda _: self._on_done())
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    @property
    def started(self) -> int:
        """The number of jobs started so far. If it grows during a job, another job ran at the same time."""
        with self._changed:
            return self._started

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self, lowest: Urgency) -> None:
        """Runs jobs of the `lowest` urgency or a higher one until the queue is closed."""
        while job := self._next(lowest):
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(job.work())
            except BaseException as error:
                job.future.set_exception(error)
            del job  # its program may be dropped while this thread waits for another job

    def _next(self, lowest: Urgency) -> Job | None:
        """Waits for a job that is urgent enough and takes the most urgent one; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or any(job.urgency <= lowest for job in self._jobs))
            if self._is_closed:
                return None
            job = min(self._jobs, key=lambda job: job.priority)
            self._jobs = [other for other in self._jobs if other is not job and not other.future.cancelled()]
            self._started += 1
            return job
