"""The state of the processes of a run on several hosts."""

from typing import Literal

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


class Activity(Struct, frozen=True, kw_only=True):
    """The activity of a process's training thread."""

    step: int = 0
    """Number of steps begun."""
    in_step: bool = False
    """True if it is in a step; false while it compiles, saves, is paused or does something else."""
    seconds: float = 0.0
    """Time that it has been in this step, while this process ran."""
    is_late: bool = False
    """True if the step takes much longer than the steps before."""
    where: str = ""
    """`function (file:line)` where it is."""
    waits: bool = False
    """True if it waits there for another process or, in a step, for a device."""


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
    activity: Activity = Activity()
    """The activity of its training thread."""
    verdict: Literal["", "waiting", "stuck"] = ""
    """`stuck`: the run hangs, and the others wait for it; `waiting`: it waits for another; empty while any process
    makes progress. Concluded from what all have reported."""
    beat: int = 0
    """Number of reports so far."""
