"""Reads `.xplane.pb`: the XSpace message of the profiler, with the stats of event metadata, which `ProfileData` omits.

The message is declared here as far as it is read: tsl/profiler/protobuf/xplane.proto.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ..base.protobuf import message_class
from ..base.untrusted import read_bytes
from ..base.user_error import UserError

MAX_BYTES = 1_000_000_000
"""Larger files are refused: read, a trace takes several times its size in memory."""

FIELDS = {
    "Stat": (
        "int64 metadata_id 1",
        "double double_value 2",
        "uint64 uint64_value 3",
        "int64 int64_value 4",
        "bytes str_value 5",
        "bytes bytes_value 6",
        "uint64 ref_value 7",
    ),
    "Event": ("int64 metadata_id 1", "int64 offset_ps 2", "int64 duration_ps 3", "Stat* stats 4"),
    "Line": ("bytes name 2", "int64 timestamp_ns 3", "Event* events 4"),
    "EventMetadata": ("bytes name 2", "Stat* stats 5"),
    "StatMetadata": ("bytes name 2",),
    "EventEntry": ("int64 key 1", "EventMetadata value 2"),
    "StatEntry": ("int64 key 1", "StatMetadata value 2"),
    "Plane": (
        "bytes name 2",
        "Line* lines 3",
        "EventEntry* event_metadata 4",
        "StatEntry* stat_metadata 5",
        "Stat* stats 6",
    ),
    "Space": ("Plane* planes 1",),
}
MODULE = re.compile(r"(.+)\((\d+)\)$")
"""A program's name and id, as the planes of TPUs and of programs have it."""


def space_class() -> type[Any]:
    return message_class("shardtui.xspace", FIELDS, "Space")


class Plane:
    """One plane of a trace: a device, or the host."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.name = _text(message.name)

    @cached_property
    def event_names(self) -> dict[int, str]:
        return {entry.key: _text(entry.value.name) for entry in self.message.event_metadata}

    @cached_property
    def stat_names(self) -> dict[int, str]:
        """Names of stats, and texts that stats refer to, by metadata id."""
        return {entry.key: _text(entry.value.name) for entry in self.message.stat_metadata}

    @cached_property
    def event_stats(self) -> dict[int, dict[str, Any]]:
        return {entry.key: self.stats(entry.value) for entry in self.message.event_metadata if entry.value.stats}

    def id_of(self, stat: str) -> int:
        """Returns the metadata id of a stat by its name; -1 if the plane has none."""
        return next((id for id, name in self.stat_names.items() if name == stat), -1)

    def stats(self, owner: Any) -> dict[str, Any]:
        """Returns the stats of an event, of its metadata or of the plane's message by name."""
        return {self.stat_names.get(stat.metadata_id, ""): self.value(stat) for stat in owner.stats}

    def value(self, stat: Any) -> Any:
        """Returns the value of a stat: a number, a text or bytes."""
        if stat.HasField("ref_value"):
            return self.stat_names.get(stat.ref_value, "")
        if stat.HasField("str_value"):
            return _text(stat.str_value)
        names = ("int64_value", "uint64_value", "double_value", "bytes_value")
        return next((getattr(stat, name) for name in names if stat.HasField(name)), 0)

    def lines(self) -> Iterator[tuple[str, int, Any]]:
        """Yields each line with events: its name, the picosecond it starts at, and its events."""
        for line in self.message.lines:
            if line.events:
                yield _text(line.name), line.timestamp_ns * 1000, line.events


def read_planes(path: Path) -> list[Plane]:
    """Reads a trace. Raises UserError if it cannot be read, or is none."""
    content = read_bytes(path, MAX_BYTES)
    space = space_class()()
    try:
        space.ParseFromString(content)
    except DecodeError as error:
        raise UserError(f"{path}: not a whole trace: give an .xplane.pb that the profiler has written") from error
    return [Plane(message) for message in space.planes]


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
