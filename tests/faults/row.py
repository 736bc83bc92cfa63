"""Rows of the tables of faults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One kind of fault and its outcome."""

    injected: str
    """What was done to the programs."""
    times: int
    """How often."""
    survived: int
    """How often the programs behaved correctly."""
    note: str = ""
    """What was observed, or what went wrong."""

    @property
    def is_good(self) -> bool:
        """Whether the programs survived every time."""
        return self.survived == self.times
