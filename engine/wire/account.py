"""The account of a step: where its time went, as measured by the profiler."""

from msgspec import Struct


class PartTime(Struct, frozen=True, kw_only=True):
    """One part of the step. The parts of a device add up to the step."""

    name: str
    """`matrix products`, `other fusions`, `copies`, `all-reduce over model: waiting` or `: exposed` for each
    collective, `other programs`, `input`, `host` or `idle`. docs/slow-step.md says what each means."""
    seconds: float
    """Seconds per step, mean of the devices."""
    share: float
    """Fraction of the step."""


class DeviceTime(Struct, frozen=True, kw_only=True):
    """The step of one device."""

    device: int
    """Device id; in a trace of another program, its number in the trace."""
    seconds: list[float]
    """Seconds per step of each of the account's parts, in their order."""


class CollectiveTime(Struct, frozen=True, kw_only=True):
    """One collective of the program. Seconds are per step, means of the devices."""

    name: str
    """Name of the instruction."""
    kind: str
    """Kind of collective, such as `all-reduce`."""
    axes: list[str]
    """The mesh axes it communicates over; empty if the mesh is not known."""
    count: float
    """Executions per step, as measured."""
    seconds: float
    """Seconds in which it was in progress: waiting + exposed + hidden."""
    waiting_seconds: float
    """Seconds in which the device waited for others to begin it, and computed nothing."""
    exposed_seconds: float
    """Seconds after that in which the device computed nothing else."""
    hidden_seconds: float
    """Seconds in which the device computed at the same time."""
    predicted_seconds: float | None
    """Seconds by the roofline: bytes sent at the bandwidth of a ring of ICI links, both directions; null if the
    links of the device or the bytes are not known."""
    bytes: int | None
    """Bytes per device and step; null if that depends on data."""
    source: str
    """`file:line` of the operation it belongs to; empty if the compiler does not report it."""


class OperationTime(Struct, frozen=True, kw_only=True):
    """One operation of the program."""

    name: str
    """Name of the instruction."""
    part: str
    """The part of the step it belongs to: for a collective its kind and axes."""
    count: float
    """Executions per step on one device, as measured."""
    seconds: float
    """Seconds per step, mean of the devices: time shared with another operation of the device is divided."""
    module: str
    """Scope of the code it belongs to, such as `blocks/attention`; empty if the compiler does not report it."""
    source: str
    """`file:line`; empty if the compiler does not report it."""


class WaitTime(Struct, frozen=True, kw_only=True):
    """How long other devices waited for one: it was the last to begin a collective."""

    device: int
    """The device that they waited for."""
    count: float
    """Collectives per step in which at least one device waited for it."""
    seconds: float
    """Seconds per step, mean of the other devices."""


class Account(Struct, frozen=True, kw_only=True):
    """Where the time of a step went, measured by the profiler over whole steps."""

    program: str
    """Name of the compiled program."""
    mesh: dict[str, int]
    """Mesh axis to size; empty if not known."""
    steps: int
    """Whole steps that were measured."""
    step_seconds: float
    """Seconds per step in the trace, from the start of the first step to the end of the last operation."""
    clock_seconds: float | None
    """Seconds per step by the engine's clock; null if the trace is read from a file."""
    parts: list[PartTime]
    """Parts of the step, in a fixed order; they add up to `step_seconds`."""
    devices: list[DeviceTime]
    """The parts of each device."""
    collectives: list[CollectiveTime]
    """The collectives that move data between devices, those with most time first."""
    operations: list[OperationTime]
    """The operations with most time, at most 500."""
    operations_left_out: int
    """Operations beyond those listed."""
    waits: list[WaitTime]
    """The devices that others waited for, longest first."""
    skipped: list[str]
    """Planes and lines of the trace that this version does not know, and that were skipped."""
