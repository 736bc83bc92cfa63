"""Traces written by hand, as the profiler of a TPU or a GPU writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardtui.engine.profiling.xspace import space_class

Timed = tuple[str, int, int]
"""Name of an event, and the microseconds at which it begins and ends."""


class Space:
    def __init__(self) -> None:
        self.message = space_class()()

    def plane(self, name: str) -> "PlaneWriter":
        message = self.message.planes.add()
        message.name = name.encode()
        return PlaneWriter(message)

    def write(self, folder: Path) -> Path:
        path = folder / "host.xplane.pb"
        path.write_bytes(self.message.SerializeToString())
        return path


class PlaneWriter:
    def __init__(self, message: Any) -> None:
        self.message = message
        self.events: dict[str, int] = {}
        self.stats: dict[str, int] = {}

    def line(self, name: str, events: Sequence[Timed], **stats: str | int) -> None:
        """Adds a line, whose events all have the same stats."""
        line = self.message.lines.add()
        line.name, line.timestamp_ns = name.encode(), 1000
        for text, begin, end in events:
            event = line.events.add()
            event.metadata_id = self._id(text)
            event.offset_ps, event.duration_ps = begin * 10**6, (end - begin) * 10**6
            self._add_stats(event, stats)

    def describe(self, event: str, **stats: str | int) -> None:
        """Adds stats that all events of that name share."""
        self._id(event)
        entry = next(each for each in self.message.event_metadata if each.key == self.events[event])
        self._add_stats(entry.value, stats)

    def say(self, **stats: str | int) -> None:
        self._add_stats(self.message, stats)

    def kernels(self, name: str, events: Sequence[Timed], module: str) -> None:
        """Adds a stream of a GPU: kernels, each of the operation that it is named for."""
        for text, begin, end in events:
            self.line(name, [(f"kernel_of_{text}", begin, end)], hlo_op=text, hlo_module=module)

    def _id(self, text: str) -> int:
        if text not in self.events:
            entry = self.message.event_metadata.add()
            entry.key = self.events[text] = len(self.events) + 1
            entry.value.name = text.encode()
        return self.events[text]

    def _add_stats(self, owner: Any, stats: Mapping[str, str | int]) -> None:
        for name, value in stats.items():
            if name not in self.stats:
                entry = self.message.stat_metadata.add()
                entry.key = self.stats[name] = len(self.stats) + 1
                entry.value.name = name.encode()
            stat = owner.stats.add()
            stat.metadata_id = self.stats[name]
            if isinstance(value, int):
                stat.int64_value = value
            else:
                stat.str_value = value.encode()
