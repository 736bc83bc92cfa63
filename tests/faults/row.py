"""One line of a fault table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    injected: str
    times: int
    survived: int
    note: str = ""

    @property
    def is_good(self) -> bool:
        return self.survived == self.times
