"""Contents of a trace: the intervals of programs on devices, in picoseconds."""

from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.spans import Span


class Step(NamedTuple):
    """The dispatch of a step, which the host annotates."""

    begin: int
    """Picoseconds."""
    number: int
    """Its number in the run."""


class Interval(NamedTuple):
    """An operation in progress on a device."""

    begin: int
    """Picoseconds."""
    end: int
    """Picoseconds."""
    name: str
    """Name of the instruction."""
    run: int
    """The execution of the program that it belongs to."""
    in_flight: bool = False
    """The span of an asynchronous operation, from its start to its end: the device may compute meanwhile."""
    is_execution: bool = True
    """Whether it counts as an execution: of several kernels for an operation of a GPU library, the first does."""


@dataclass
class ProgramTrace:
    """One program in the trace."""

    name: str
    """Such as `jit_train_step`."""
    text: str = ""
    """HLO text; empty if the trace has none."""
    instructions: dict[str, str] = field(default_factory=dict[str, str])
    """Lines of HLO text by instruction, where events have them: for a trace without the program."""
    products: set[str] = field(default_factory=set[str])
    """Instructions that the profiler calls matrix products: for a trace without the program."""
    devices: dict[int, list[Interval]] = field(default_factory=dict[int, list[Interval]])
    """Operations by the device's number in the trace."""

    def add(self, device: int, interval: Interval) -> None:
        self.devices.setdefault(device, []).append(interval)

    @property
    def busy(self) -> int:
        """Picoseconds of all operations, nested ones counted twice."""
        return sum(each.end - each.begin for intervals in self.devices.values() for each in intervals)


@dataclass
class Trace:
    """The contents of a trace."""

    programs: dict[str, ProgramTrace] = field(default_factory=dict[str, ProgramTrace])
    """By the key that events refer to: the program's id, or its name."""
    unnamed: dict[int, list[Span]] = field(default_factory=dict[int, list[Span]])
    """Work of devices that names no instruction."""
    steps: list[Step] = field(default_factory=list[Step])
    """Steps as the host annotates them."""
    inputs: list[Span] = field(default_factory=list[Span])
    """Times in which the host prepared batches."""
    kind: str = ""
    """Kind of the devices, such as `TPU v6 Lite`; empty if the trace does not say it."""
    epoch: int | None = None
    """Nanoseconds from 1970 until the trace's time 0, by the host's clock; None if the trace does not say it."""
    skipped: list[str] = field(default_factory=list[str])
    """Unknown planes, and unknown lines of devices."""

    def program(self, key: str, name: str) -> ProgramTrace:
        """Returns the program with this key; adds it if it is new."""
        return self.programs.setdefault(key, ProgramTrace(name))
