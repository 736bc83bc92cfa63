"""What waits to be compiled. One thread takes all of it, so that one core is taken from the steps and memory has a
bound; a second one only what the user waits for: nothing that runs in the first can be interrupted."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Urgency(IntEnum):
    """The least goes first."""

    ASKED = 0
    """The user waits for it."""
    SCHEDULED = 1
    LOOK = 2
    LIKELY = 3


@dataclass(frozen=True)
class Job:
    urgency: Urgency
    number: int
    work: Callable[[], Any]
    future: Future[Any]

    @property
    def rank(self) -> tuple[int, int]:
        """Of two requests of the user's the later one goes first; else the earlier one."""
        return self.urgency, -self.number if self.urgency == Urgency.ASKED else self.number


class CompileQueue:
    """What nobody waits for any more is dropped by cancelling its future: XLA cannot be interrupted, so a job that has
    begun goes on, unless its work looks whether it is still wanted."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False
        self._begun = 0
        """Jobs so far."""
        threading.Thread(target=self._run, args=(Urgency.LIKELY,), name="compiler", daemon=True).start()
        threading.Thread(target=self._run, args=(Urgency.ASKED,), name="asked compiler", daemon=True).start()

    def submit(self, urgency: Urgency, work: Callable[[], T]) -> Future[T]:
        job = Job(urgency, next(self._numbers), work, Future())
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    @property
    def begun(self) -> int:
        """Jobs so far: a job during which it grows was not alone."""
        with self._changed:
            return self._begun

    def close(self) -> None:
        """Nothing else is begun."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self, least: Urgency) -> None:
        """In a thread: what is so urgent, or more."""
        while job := self._next(least):
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(job.work())
            except BaseException as error:
                job.future.set_exception(error)

    def _next(self, least: Urgency) -> Job | None:
        """The most urgent one, once there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or any(job.urgency <= least for job in self._jobs))
            if self._is_closed:
                return None
            job = min(self._jobs, key=lambda job: job.rank)
            self._jobs = [other for other in self._jobs if other is not job and not other.future.cancelled()]
            self._begun += 1
            return job
