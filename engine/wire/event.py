"""The base of all events of a run, and the version of their protocol."""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

VERSION = 6
"""A viewer and an engine of different versions exchange nothing but `Stop`."""


class Level(StrEnum):
    """How much an event matters. The filter of Log finds it by this word."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DETAIL = "detail"
    UNLOGGED = "unlogged"
    """Too frequent for the log, or of no interest later."""


class Event(Struct, frozen=True, tag=True, kw_only=True):
    """Something that happened."""

    LEVEL: ClassVar[Level] = Level.INFO
    TOPIC: ClassVar[str] = ""
    """Title of the notice that shows the line over every view; empty if the event is only logged."""

    seq: int = 0
    """Counts from 1 without gaps, across restarts of the run; 0 for an event that is sent to one viewer only."""
    time: float = 0.0
    """Seconds since the epoch, by the engine's clock."""

    @property
    def level(self) -> Level:
        return self.LEVEL

    @property
    def line(self) -> str:
        """The event in words; empty if it is unlogged."""
        return ""
