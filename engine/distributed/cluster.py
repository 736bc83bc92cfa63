"""The processes that train one run. All do the same in the same order; process 0 decides what comes next."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..wire.hosts import Activity, HostInfo, HostStatus
from .hang import diagnose_hang
from .outcomes import unsuccessful

T = TypeVar("T")


class Cluster:
    """The interface between processes, and its implementation for a single process, which agrees with itself."""

    process = 0
    count = 1
    begun = 0
    """Number of steps begun."""
    in_step = False
    """Whether the training thread is in the code of a step."""
    beat: int | None = None
    """Descriptor of the file that tells the supervisor whether it is; None without a supervisor."""
    hosts: Sequence[HostInfo] = ()
    """The processes, once they have met; empty if there is only this one."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Marks code that runs a step, or waits for one."""
        if self.in_step:
            yield
            return
        self.in_step = True
        self.mark(True)
        try:
            yield
        finally:
            self.in_step = False
            self.mark(False)

    def mark(self, in_step: bool) -> None:
        """Tells the supervisor whether this process is in a step, before native code can keep Python from running."""
        if self.beat is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self.beat, b"step" if in_step else b"else", 0)

    def meet(self) -> None:
        """Meets the other processes. Call it before any other method. Raises UserError."""

    def broadcast(self, decide: Callable[[], T], kind: Any) -> T:
        """Returns in every process what `decide` returns in process 0; `decide` is called only there. If it raises
        UserError or Damaged, all processes raise that; any other exception becomes Failure in all."""
        return self.run_on_all(decide)

    def all_gather(self, value: T, kind: Any) -> list[T]:
        """Returns the value of each process, by process index."""
        return [value]

    def gather(self, value: T, kind: Any) -> list[T]:
        """Returns in process 0 the value of each process, by process index; nothing elsewhere."""
        return [value]

    def run_on_all(self, attempt: Callable[[], T], has_collectives: bool = False) -> T:
        """Returns what `attempt` returns in this process, once it has succeeded in every process. Otherwise all raise
        the same, with the problems of each process: Failure if any failed, else Damaged, else UserError. If it
        `has_collectives`, raises Stranded if it fails here while others wait in one forever."""
        try:
            return attempt()
        except BaseException as error:  # of the user's code, perhaps
            raise unsuccessful(error) from error

    def fingerprint(self, text: str) -> str:
        """Returns a digest by which processes compare texts without revealing them."""
        return text

    def stride(self, step_seconds: float) -> int:
        """Returns how many steps to run between two broadcasts, so that these take at most `MAX_SHARE` of the time."""
        return 1

    def ask_to_stop(self) -> None:
        """Forwards a signal to stop to process 0, which sees it within two beats."""

    def statuses(self) -> list[HostStatus]:
        """Returns the last status of every process; none if there is only this one."""
        return []

    def report(self, step: int, bytes_in_use: int) -> None:
        """Reports the progress of this process, for `statuses`."""

    def share(self, activity: Activity) -> list[HostStatus]:
        """Reports what this process does, and returns the last status of every process, with verdicts."""
        return diagnose_hang([HostStatus(process=0, step=0, bytes_in_use=0, activity=activity)])

    def fail(self, error: BaseException) -> None:
        """Reports to the others that `error` ends this process, and the run with it. If the end of another process may
        be the cause, waits first: that end is then detected and ends this process."""

    def close(self) -> None:
        """Leaves the run: processes that end from now on are not reported as lost. Process 0 waits for the others."""
