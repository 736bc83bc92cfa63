"""Stopping a run before its last step."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from ..distributed.cluster import Cluster
from ..wire.inbox import Inbox


class Stopping:
    """Whether all processes have agreed to stop."""

    is_agreed = False
    """True once all processes have agreed to stop before the next step."""

    def __init__(self, cluster: Cluster, inbox: Inbox, report: Callable[[], None]) -> None:
        """`report` is called repeatedly while a compilation is awaited."""
        self._cluster = cluster
        self._inbox = inbox
        self._report = report

    def is_requested_before(self, compiled: "Future[Any]") -> bool:
        """Waits for a compilation or for a request to stop, and returns whether the request came first.

        A compilation cannot be interrupted, but it need not be awaited.
        """
        self.is_agreed = self.is_agreed or self._cluster.agree(
            lambda: self._inbox.is_stopped_before(compiled.done, self._report), bool
        )
        if not self.is_agreed:
            wait([compiled])  # process 0 has finished; this process may take a little longer
        return self.is_agreed
