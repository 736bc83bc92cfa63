"""What `doctor` finds on a machine: checks, one after the other, and the report of all of them."""

import time
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..base.advice import problems_in


class Check(Struct, frozen=True, kw_only=True):
    """One check of a machine, and what it found."""

    name: str = ""
    """Its name, the same on every machine."""
    verdict: Literal["running", "ok", "warning", "broken"] = "ok"
    """`warning`: training works, but slower or with less; `broken`: something does not work."""
    found: str = ""
    """What was found, with its numbers."""
    advice: str = ""
    """What to do; empty if there is nothing to do, or if `found` says it."""
    numbers: dict[str, float] = {}
    """What was measured, by name and unit, for comparison with another machine."""
    seconds: float = 0.0
    """Seconds that the check took."""


class Examination(Struct, frozen=True, kw_only=True):
    """What to check in the engine's process."""

    devices: int | None = None
    """Devices to use; None for all that are found, or eight simulated ones."""
    platform: str | None = None
    """The jax platform; None lets jax choose."""
    computes: bool = False
    """Whether the devices compute, too."""


class Checkup(Struct, frozen=True, kw_only=True):
    """The report of a machine, without names of hosts, users and their directories."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    version: str
    """Version of shardtui."""
    checks: list[Check]
    """All checks, in their order."""


def examined(name: str, look: Callable[[], Check]) -> Iterator[Check]:
    """Yields a check before it runs and after it. An error of any kind is found to be broken."""
    yield Check(name=name, verdict="running")
    began = time.monotonic()
    try:
        check = look()
    except Exception as error:
        check = Check(verdict="broken", found="; ".join(problems_in(error)))
    yield replace(check, name=name, seconds=round(time.monotonic() - began, 3))
