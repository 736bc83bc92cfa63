"""How a run is supervised, and its attempts: each start of its engine by the supervisor. No jax here."""

from msgspec import Struct

RESTARTS = 20


class Supervision(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The policy for an engine that ends."""

    restarts: int = RESTARTS
    min_processes: int | None = None
    fallback: tuple[str, ...] = ()
    """Presets, by name or file, tried in this order where the run's own does not fit the devices left."""
    wait_seconds: float | None = None
    """Seconds for which lost hosts are waited for; None: not at all if enough are left, else for ever."""


class LostProcess(Struct, frozen=True):
    """A process that ended an attempt."""

    process: int
    """Process index."""
    why: str
    """How it ended."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of a supervised engine. It lasts until a process is lost, or the run ends."""

    number: int
    """Counts from 1; on one machine anew for each supervisor."""
    supervisor: int
    """Process id of the supervisor."""
    processes: int = 1
    """Processes that train in it."""
    of: int = 1
    """Processes of the run when none is missing."""
    lost: LostProcess | None = None
    """The process whose end ended the attempt before; null in the first."""
    left_out: tuple[int, ...] = ()
    """Ids of devices that are not used any more, in a run of one process: they differed from their replicas."""

    @property
    def remaining(self) -> str:
        """`2 of 4 processes` if some are missing, or `all but device 5`."""
        if self.left_out:
            return f"all but device {', '.join(map(str, self.left_out))}"
        return f"{self.processes} of {self.of} processes" if self.processes < self.of else ""
