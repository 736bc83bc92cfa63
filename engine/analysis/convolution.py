"""What a convolution multiplies along one dim, without what it would multiply by padding and by dilation's zeros."""

import math
from typing import NamedTuple

MOST_PLACES = 10_000
"""Of a kernel along one dim."""


class Dim(NamedTuple):
    taken: int
    """Length of the input."""
    kernel: int
    made: int
    """Length of the result."""
    pad: int = 0
    """Before the input; below 0 the input is cut."""
    stride: int = 1
    dilation: int = 1
    """Of the input."""
    kernel_dilation: int = 1


def multiplied(dim: Dim) -> int | None:
    """How often a number of the kernel meets one of the input; None where the kernel is too long to be looked at.

    As XLA counts (`HloCostAnalysis::HandleConvolution`), in a time that follows the kernel's length alone.
    """
    if dim.kernel > MOST_PLACES or min(dim.stride, dim.dilation) < 1:
        return None
    return sum(_meetings(dim, at * dim.kernel_dilation - dim.pad) for at in range(dim.kernel))


def _meetings(dim: Dim, first: int) -> int:
    """Of one number of the kernel: results `n` for which `first + n · stride` is a multiple of the dilation that lies
    within the input."""
    common = math.gcd(dim.stride, dim.dilation)
    if first % common:
        return 0
    period = dim.dilation // common
    start = -first // common * pow(dim.stride // common, -1, period) % period
    lowest = max(0, -(first // dim.stride))
    highest = min(dim.made - 1, ((dim.taken - 1) * dim.dilation - first) // dim.stride)
    return max(0, (highest - start) // period - (lowest - 1 - start) // period) if highest >= lowest else 0
