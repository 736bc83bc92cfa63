"""The processes that train one run. All do the same things in the same order; process 0 decides what comes next."""

from collections.abc import Callable
from typing import Any, TypeVar

from ..wire.descriptions import HostInfo, HostStatus
from .outcomes import unsuccessful

T = TypeVar("T")


class Cluster:
    """A process that is alone: what it decides is agreed."""

    process = 0
    count = 1

    def meet(self) -> list[HostInfo]:
        """Who they are; none where there is only this one. Before anything else is agreed. Raises Invalid."""
        return []

    def agree(self, decide: Callable[[], T], kind: Any) -> T:
        """What process 0 decides, in every process; `decide` is called in process 0 alone. Where that raises Invalid or
        Damaged, so do all; what else it raises is Failure in all."""
        return self.together(decide)

    def gather(self, value: T, kind: Any) -> list[T]:
        """The value of each process, by its number."""
        return [value]

    def together(self, attempt: Callable[[], T]) -> T:
        """What `attempt` gives here, once it has succeeded in every process. Else raises the same in all: Failure where
        it failed in one of them, else Damaged, else Invalid, with what each process found."""
        try:
            return attempt()
        except Exception as error:
            raise unsuccessful(error) from error

    def collectively(self, attempt: Callable[[], T]) -> T:
        """As `together`, where the attempt has collectives in it. Raises Stranded where it fails in this process while
        others wait in one for ever."""
        return self.together(attempt)

    def note(self, name: str) -> None:
        """Tells process 0 that this process got there. From any thread; waits for nobody."""

    def have_all_noted(self, name: str) -> bool:
        """The other processes got there, as process 0 sees it."""
        return True

    def forget(self, name: str) -> None:
        """That all got there; for process 0."""

    def fingerprint(self, text: str) -> str:
        """Of a text that is not for the others to read: equal where the texts are."""
        return text

    def stride(self, step_seconds: float) -> int:
        """Steps from one agreement to the next, so that it takes no more than `SHARE` of them."""
        return 1

    def statuses(self) -> list[HostStatus]:
        """As every process told last; none where there is only this one."""
        return []

    def report(self, step: int, bytes_in_use: int) -> None:
        """How this process stands, for `statuses`."""

    def tell_stall(self, where: str) -> None:
        """Where this process has been for a while; nothing once it goes on."""

    def stalled_elsewhere(self) -> str | None:
        """Where another process has been for a while."""
        return None

    def fail(self, error: Exception) -> None:
        """Tells the others that this process ends of `error`, and the run with it. Where another one's end may have
        caused that, it waits before: it is told meanwhile, and ends this process."""

    def close(self) -> None:
        """All is over: from now on no process is missed. In the first one it waits until the others know."""
