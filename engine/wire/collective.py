"""One collective of a compiled step, and the bytes that it sends."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

Network = Literal["ici", "dcn", "nvlink", "network"]
"""The network of a collective: `ici` the links inside a TPU slice, `dcn` the data center network between slices,
`nvlink` the links inside a GPU host, `network` between GPU hosts."""


class CollectiveInfo(Struct, frozen=True, kw_only=True):
    """One collective of a compiled step."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute` …"""
    axes: list[str]
    """The mesh axes it communicates over."""
    group_size: int
    """Devices in a group: the product of the axes' sizes, or less if it spans only a part of an axis. Over DCN, the
    slices that exchange data: each device sends to those in its place on the other slices."""
    count: int | None
    """Executions per step, including loop iterations; null if that depends on data or on a branch."""
    bytes_each: int
    """Bytes of one execution on one device: the input of a reduction, exchange or scatter, the output of a gather.
    Of a ragged all-to-all all rows of the input: how many are sent depends on data."""
    bytes_per_device: int | None
    """Bytes per step: `count` × `bytes_each`; null if `count` is null."""
    bytes_sent: int | None = None
    """Bytes that a device sends for it in a step, see `ring_bytes`; null if `count` is null."""
    dtype: str
    """Dtype of its operands."""
    shapes: list[list[int]]
    """Shapes of its results on one device."""
    op_name: str
    """Name that jax gave the operation it belongs to."""
    source: str
    """`file:line` of the operation it belongs to; empty if the compiler does not report it."""
    written: bool
    """True if the code calls it (`psum` in a `shard_map`), false if the compiler inserted it."""
    gathered: list[str] = []
    """For each result of an all-gather the array of the state or batch that it gathers, or an empty string if it
    gathers something else; empty for other collectives."""
    reduced: list[str] = []
    """For each result of a reduction the array of the state that it updates, such as a parameter whose gradient it
    sums, or an empty string if it updates none; empty for other collectives."""
    multiplied: bool = False
    """True if the result of an all-gather is an operand of a matrix product."""
    overlapped: bool = False
    """True if it is asynchronous, and the compiler scheduled computation between its start and its end."""
    name: str = ""
    """Name of the instruction, as traces have it: of a collective inside a fusion, the fusion."""
    network: Network | None = None
    """The network; null if the program's text does not tell, as on simulated devices."""

    def __post_init__(self) -> None:
        size = self.bytes_per_device
        sent = None if size is None else round(ring_bytes(self.kind, size, self.group_size))
        force_setattr(self, "bytes_sent", sent)

    @property
    def least_bytes(self) -> int:
        return self.bytes_per_device or self.bytes_each


def ring_bytes(kind: str, size: int, group_size: int) -> float:
    """Returns the bytes that each device of a group sends for a collective of `size` bytes on a ring.

    An all-gather, a reduce-scatter or an all-to-all of V bytes over n devices sends V (n - 1) / n, an all-reduce twice
    that, a permutation all of V (Chan et al. 2007, "Collective communication", table II).
    """
    if kind in ("collective-permute", "collective-broadcast"):
        return size if group_size > 1 else 0.0
    return (2 if kind == "all-reduce" else 1) * size * (group_size - 1) / group_size
