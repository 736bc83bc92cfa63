"""One line of the tables: what was done to the programs, how often, and how often they did as they should."""

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
