"""The breakdown of a step: the parts of its time, as measured by the profiler."""

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
    """Seconds per step of each of the breakdown's parts, in their order."""


class FlowTime(Struct, frozen=True, kw_only=True):
    """Collectives of one kind over the same axes. Seconds are per step, means of the devices."""

    kind: str
    """Kind of collective, such as `all-reduce`."""
    axes: list[str]
    """The mesh axes; empty if the mesh is not known."""
    count: float
    """Executions per step, as measured."""
    seconds: float
    """Seconds in progress: waiting + exposed + hidden."""
    waiting_seconds: float
    """Seconds in which the device waited for others to begin, and computed nothing."""
    exposed_seconds: float
    """Seconds after that in which the device computed nothing else."""
    hidden_seconds: float
    """Seconds in which the device computed at the same time."""
    bytes: int | None
    """Bytes per device and step; null if that depends on data."""


class CollectiveTime(FlowTime, frozen=True, kw_only=True):
    """One collective of the program."""

    name: str
    """Name of the instruction."""
    predicted_seconds: float | None
    """Seconds by the roofline: bytes sent at the bandwidth of a ring of ICI links, both directions; null if the
    links of the device or the bytes are not known."""
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
    flops: float | None = None
    """FLOPs of its matrix products per step on one device; null if it has none, or their shapes are not known."""
    bytes: int | None = None
    """Bytes per step that it reads from and writes to the memory of one device, by the types in the program's text; of
    a collective, the bytes that the device sends. Null if unknown."""
    flops_per_second: float | None = None
    """`flops` by `seconds`."""
    bytes_per_second: float | None = None
    """`bytes` by `seconds`; of a collective, by those after the wait for others."""
    flops_share: float | None = None
    """`flops_per_second` as a fraction of the chip's peak in bfloat16: the MFU of a product; null if unknown."""
    bandwidth_share: float | None = None
    """`bytes_per_second` as a fraction of the bandwidth of the chip's memory; of a collective, of a ring of its links
    in both directions. Null if unknown."""
    roofline_seconds: float | None = None
    """Seconds per step by the roofline: the longer of FLOPs at the peak and bytes at the bandwidth; null if the chip's
    are unknown."""


class WaitTime(Struct, frozen=True, kw_only=True):
    """How long other devices waited for one: it was the last to begin a collective."""

    device: int
    """The device that they waited for."""
    count: float
    """Collectives per step in which at least one device waited for it."""
    seconds: float
    """Seconds per step, mean of the other devices."""


TICKS = 10_000
"""Ticks of a timeline: parts of its step."""


class DeviceTimeline(Struct, frozen=True):
    """The step of one device. Each list has three numbers for each span: the ticks since the end of the span before it
    (since the step began, for the first), its ticks, and the index of its operation in `operations`, -1 if it is not
    listed there. Spans that are too short are merged: then the number is -2 - the index of the longest."""

    device: int
    """Device id."""
    work: list[int]
    """Operations that compute or copy; of several at a time the one that began first."""
    waiting: list[int]
    """Collectives that others have not begun."""
    collectives: list[int]
    """Collectives in progress after that, whether the device works or not."""


class Timeline(Struct, frozen=True, kw_only=True):
    """One of the steps that were measured, on some devices. A tick is a ten-thousandth of `seconds`."""

    step: int
    """Number of the step; in a trace whose host does not annotate them, the index of its run."""
    seconds: float
    """Length of this step."""
    devices: list[DeviceTimeline]
    """At most eight devices: all, or the ones that others wait for longest and least."""


class StepBreakdown(Struct, frozen=True, kw_only=True):
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
    """The collectives that move data between devices, most time first."""
    operations: list[OperationTime]
    """The operations with most time, at most 500."""
    operations_left_out: int
    """Operations beyond those listed."""
    waits: list[WaitTime]
    """The devices that others waited for, longest first."""
    skipped: list[str]
    """Unknown planes and lines of the trace, which were skipped; in a prediction, operations without an estimate."""
    processes: int = 1
    """Processes whose traces are merged here, by the numbers of their steps."""
    clock_error_seconds: float | None = None
    """How exactly the clocks of the processes are known to each other, at worst: each collective begins on all devices
    before it ends on one. Waiting for devices of another process is exact to this. Null for one process, and for
    processes that share no collective."""
    timeline: Timeline | None = None
    """One of the steps."""
    predicted_for: str = ""
    """The slice, such as `v5p:4x4x4`, for which all of this is predicted: operations take the cycles that the TPU
    compiler estimates, and collectives their bytes by the rate of their links. Empty if measured."""
