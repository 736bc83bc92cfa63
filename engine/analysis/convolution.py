"""Multiplications of a convolution along one dim, without those by padding and by the zeros of dilation."""

import math
from typing import NamedTuple

MAX_KERNEL = 10_000
"""Length of a kernel that is counted, along one dim."""


class Dim(NamedTuple):
    """The window of a convolution along one dim."""

    input: int
    """Length of the input."""
    kernel: int
    """Length of the kernel."""
    output: int
    """Length of the result."""
    pad: int = 0
    """Padding before the input; negative if the input is cut."""
    stride: int = 1
    """Input elements between the windows of two results."""
    dilation: int = 1
    """Dilation of the input."""
    kernel_dilation: int = 1
    """Dilation of the kernel."""


def multiplied(dim: Dim) -> int | None:
    """Returns the multiplications of a kernel element by an input element; None if the kernel is too long to count.

    Counts as XLA does (`HloCostAnalysis::HandleConvolution`), in time proportional to the kernel's length.
    """
    if dim.kernel > MAX_KERNEL or min(dim.stride, dim.dilation) < 1:
        return None
    return sum(_positions(dim, at * dim.kernel_dilation - dim.pad) for at in range(dim.kernel))


def _positions(dim: Dim, first: int) -> int:
    """Results that one kernel element contributes to.

    These are the `n` for which `first + n · stride` is a multiple of the dilation, within the dilated input.
    """
    common = math.gcd(dim.stride, dim.dilation)
    if first % common:
        return 0
    period = dim.dilation // common
    start = -first // common * pow(dim.stride // common, -1, period) % period
    lowest = max(0, -(first // dim.stride))
    highest = min(dim.output - 1, ((dim.input - 1) * dim.dilation - first) // dim.stride)
    return max(0, (highest - start) // period - (lowest - 1 - start) // period) if highest >= lowest else 0
