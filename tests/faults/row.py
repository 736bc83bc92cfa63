"""Rows of the tables of faults."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class NotRun(Exception):
    """Raised if this machine does not allow the fault."""


@dataclass(frozen=True)
class Row:
    """One kind of fault, how often it was injected, and how often the programs behaved correctly."""

    injected: str
    times: int
    survived: int
    note: str = ""
    """What was observed, or what went wrong."""

    @property
    def is_good(self) -> bool:
        return self.survived == self.times


def tried(injected: str | None, times: int, fault: Callable[[], str | None]) -> Row:
    """Injects a fault several times. `fault` returns what was observed, and raises what went wrong."""
    wrong, seen = list[str](), ""
    for _ in range(times):
        try:
            seen = fault() or ""
        except NotRun as reason:
            return Row(injected or "", 0, 0, f"not run: {reason}")
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            wrong.append(str(error).replace("\n", " ⏎ ") or "an assertion")
    return counted(injected or "", times, wrong, seen)


def counted(injected: str, times: int, wrong: Sequence[str], seen: str = "") -> Row:
    """Of faults each of which adds one text at most to what went `wrong`."""
    return Row(injected, times, max(0, times - len(wrong)), "; ".join(wrong[:3]) or seen)


def together(injected: str, times: int, *wrong: str, seen: str = "") -> Row:
    """Of faults that have survived together, or none of them; empty texts are nothing wrong."""
    problem = "; ".join(filter(None, wrong))
    return Row(injected, times, 0 if problem else times, problem or seen)
