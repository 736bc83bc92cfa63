"""What is reported of the processes of a run on several hosts."""

from typing import Literal

from msgspec import Struct

Doing = Literal[
    "starting",
    "compiling",
    "loading",
    "step",
    "switching",
    "saving",
    "evaluating",
    "sampling",
    "profiling",
    "idle",
]
"""What a training thread does. `starting`: also before and after training; `step`: a step, or an agreement before one;
`idle`: it waits for a command."""


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
    """What the training thread of a process last began."""

    doing: Doing = "starting"
    """What it does."""
    step: int = 0
    """Number of steps begun."""
    seconds: float = 0.0
    """Time since it began that, while this process ran."""
    is_late: bool = False
    """True if it is in a step that takes much longer than the steps before."""
    where: str = ""
    """`function (file:line)` where it is, once that takes long; else empty."""
    waits: bool = False
    """True if it waits there for a device or for another process, not in other code."""


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
    """What its training thread last began."""
    verdict: Literal["", "waiting", "stuck"] = ""
    """`stuck`: the others wait for it; `waiting`: it waits for another; empty while it makes progress. Not reported by
    the process itself: concluded from what all have reported."""
    beat: int = 0
    """Number of reports so far."""
