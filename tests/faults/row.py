"""Rows of the tables of faults."""

from collections.abc import Callable
from dataclasses import dataclass


class NotRun(Exception):
    """Raised if this machine does not allow the fault."""


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


def tried(injected: str | None, times: int, fault: Callable[[], str | None]) -> Row:
    """Injects a fault several times. `fault` returns what was observed, and raises AssertionError or TimeoutError with
    what went wrong."""
    wrong, seen = list[str](), ""
    for _ in range(times):
        try:
            seen = fault() or ""
        except NotRun as reason:
            return Row(injected or "", 0, 0, f"not run: {reason}")
        except (AssertionError, TimeoutError) as error:
            wrong.append(str(error).replace("\n", " ⏎ ") or "an assertion")
    return Row(injected or "", times, times - len(wrong), "; ".join(wrong[:2]) or seen)
