"""The rates of an operation as text."""

from ...engine.base import figures
from ...engine.wire.step_breakdown import OperationTime


def flops(operation: OperationTime) -> str:
    """Returns FLOP/s without their unit: `2.3 G`; empty if the operation has no matrix products."""
    return "" if operation.flops_per_second is None else figures.rate(operation.flops_per_second)


def bandwidth(operation: OperationTime) -> str:
    """Returns bytes per second without `/s`: `1.2 GB`; empty if unknown."""
    return "" if operation.bytes_per_second is None else figures.size(operation.bytes_per_second)


def share(value: float | None) -> str:
    """Formats a fraction with one digit after the point: `38.2 %`; None as an empty text."""
    return "" if value is None else f"{100 * value:.1f} %"
