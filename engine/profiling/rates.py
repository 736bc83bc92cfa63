"""The rates that an operation reaches, against those of the chip."""

from msgspec.structs import replace

from ..wire.account import OperationTime

DIGITS = 4
"""Digits of a rate that are kept: an account has hundreds of operations."""


def with_rates(
    operation: OperationTime, seconds: float, peak_flops: float | None, peak_bandwidth: float | None
) -> OperationTime:
    """Returns an operation, which has its FLOPs and bytes, with its rates.

    `seconds`: per step, in which it worked. `peak_flops`, `peak_bandwidth`: of the device, per second; None if unknown.
    """
    times = [_over(operation.flops, peak_flops), _over(operation.bytes, peak_bandwidth)]
    return replace(
        operation,
        flops_per_second=_over(operation.flops, seconds),
        bytes_per_second=_over(operation.bytes, seconds),
        flops_share=_over(times[0], seconds),
        bandwidth_share=_over(times[1], seconds),
        roofline_seconds=max((time for time in times if time is not None), default=None),
    )


def _over(amount: float | None, by: float | None) -> float | None:
    return None if amount is None or not by else float(f"{amount / by:.{DIGITS}g}")
