"""The processes that train one run. All do the same things in the same order; process 0 decides what comes next."""

from collections.abc import Callable
from typing import Any, TypeVar

from .protocol import HostInfo, HostStatus

T = TypeVar("T")


class Cluster:
    """A process that is alone: what it decides is agreed."""

    process = 0
    count = 1

    def meet(self) -> list[HostInfo]:
        """Who they are; none where there is only this one. Before anything else is agreed. Raises Invalid."""
        return []

    def agree(self, decide: Callable[[], T], kind: Any) -> T:
        """What process 0 decides, in every process; `decide` is called in process 0 alone. Invalid is raised in all."""
        return decide()

    def gather(self, value: T, kind: Any) -> list[T]:
        """The value of each process, by its number."""
        return [value]

    def together(self, attempt: Callable[[], T]) -> T:
        """What `attempt` gives here, once it has succeeded in every process; else its error, or theirs as Invalid."""
        return attempt()

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

    def close(self) -> None:
        """All is over: from now on no process is missed. In the first one it waits until the others know."""
