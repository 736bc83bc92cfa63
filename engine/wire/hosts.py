"""What is reported of the processes of a run on several hosts."""

from msgspec import Struct


class HostInfo(Struct, frozen=True):
    """One process of a run on several hosts."""

    process: int
    """Process index."""
    processes: int
    """Number of processes it was started with."""
    name: str
    """Host name."""
    pid: int
    """Process id on its host."""


class HostStatus(Struct, frozen=True):
    """The last status that one process of several reported; processes report every second."""

    process: int
    """Process index."""
    step: int
    """Number of completed steps."""
    bytes_in_use: int
    """Bytes in use on its fullest device."""
    is_stopping: bool = False
    """True if it received a signal to stop, which process 0 then handles."""
    is_closing: bool = False
    """True if it is exiting normally, together with all others."""
    problem: str = ""
    """Why it failed, which ends the run; else empty."""
    stalled: str = ""
    """`function (file:line)` where it is stuck; empty while it makes progress."""
    beat: int = 0
    """Number of reports so far."""
