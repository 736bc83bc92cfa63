"""Collectives of a step, as the formulas count them."""

from dataclasses import dataclass

from ..spec.preset import Axes


@dataclass(frozen=True)
class Collective:
    """Collectives of a step that are alike."""

    kind: str
    """HLO opcode, such as `all-gather`."""
    axes: Axes
    """The mesh axes that it communicates over."""
    bytes_each: float
    """Bytes per device of each one: of the gathered array for a gather, of the input for a scatter."""
    count: int
    """How many run per step."""
