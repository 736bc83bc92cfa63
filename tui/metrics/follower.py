"""Reads the events of a run, as far as they are recorded or until it ends, and writes its curves."""

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

from ...engine.base import formatting
from ...engine.base.output import note, say
from ...engine.base.user_error import UserError
from ...engine.spec.config import Destination
from ...engine.wire.event_log import LogReader
from ...engine.wire.run_directory import RunDirectory
from . import csv_file, event_files
from .points import Point, Points

POLL_SECONDS = 0.5
"""As often as an engine reports steps."""
PROGRESS_SECONDS = 2.0
"""A history that takes longer is written with lines of progress, so far apart."""


class Writer(Protocol):
    """Writes points, which come in the order of their steps; after a rewind another writer begins."""

    @property
    def where(self) -> str: ...
    def add(self, point: Point) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def began(directory: RunDirectory) -> float:
    """Returns the time of a run's first event, which tells runs of one name apart; infinity if there is none yet.
    Raises UserError if the events cannot be read."""
    try:
        first = next(chain.from_iterable(LogReader(directory.events).read()), None)
    except FileNotFoundError:
        return math.inf
    return first.time if first else math.inf


def require_writable(destination: Destination, directory: RunDirectory) -> None:
    """Raises UserError if it is known that the curves of a run, which need not exist, cannot be written there."""
    kind, place = destination.kind, destination.place
    if kind != "csv" and not _is_installed(kind):
        raise UserError(f"{destination.words}: needs the package {kind}: pip install 'shardtui[{kind}]'")
    if kind == "csv":
        csv_file.require_own(Path(place), directory.name, began(directory))
        if not Path(place).absolute().parent.is_dir():
            raise UserError(f"{place}: there is no such directory: create {Path(place).absolute().parent}")
    elif kind == "tensorboard":
        event_files.require_own(Path(place) / directory.name, began(directory))


def _is_installed(package: str) -> bool:
    """A folder of that name, such as the one in which wandb keeps runs, is no package."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _new_writer(destination: Destination, directory: RunDirectory, rewinds: int) -> Writer:
    """Raises UserError."""
    begun, place = began(directory), destination.place
    if destination.kind == "csv":
        return csv_file.CsvFile(Path(place), directory.name, begun)
    if destination.kind == "tensorboard":
        return event_files.EventFile(Path(place) / directory.name, begun)
    from .wandb_run import WandbRun

    return WandbRun(place, directory, begun, rewinds)


class Feed:
    """Carries the points of a run to one destination."""

    def __init__(self, destination: Destination, directory: RunDirectory) -> None:
        self._destination, self._directory = destination, directory
        self._curves: set[str] = set()
        self._step = 0
        self._points: Points | None = None
        self._reader = LogReader(directory.events)
        self._writer: Writer | None = None

    @property
    def unreadable_lines(self) -> int:
        return self._reader.unreadable_lines

    @property
    def summary(self) -> str:
        """What was written, and where; empty if there was nothing."""
        if self._writer is None:
            return ""
        curves = formatting.counted(len(self._curves), "curve")
        return f"{self._writer.where}: {curves} up to step {self._step:,}"

    def carry(self) -> None:
        """Writes what was recorded since the last call. Raises FileNotFoundError if the run has recorded nothing, and
        UserError if it cannot be read or written."""
        self._points = self._points or Points(LogReader(self._directory.events).read())
        noted = time.monotonic()
        for events in self._reader.read():
            for point in chain.from_iterable(map(self._points.of, events)):
                if isinstance(point, Point):
                    self._add(point, self._points.rewinds)
                elif self._writer:
                    return self._begin_anew(self._writer)
            if time.monotonic() > noted + PROGRESS_SECONDS:
                noted = time.monotonic()
                note(f"{self._destination.words}: step {self._step:,}")
        if self._writer:
            self._writer.flush()
        return None

    def _begin_anew(self, writer: Writer) -> None:
        """Carries all by another writer after a rewind, also if no step is left."""
        writer.close()
        self._reader = LogReader(self._directory.events)
        self._points = Points(LogReader(self._directory.events).read())
        self._writer = _new_writer(self._destination, self._directory, self._points.rewinds)
        self.carry()

    def _add(self, point: Point, rewinds: int) -> None:
        if self._writer is None:
            self._writer = _new_writer(self._destination, self._directory, rewinds)
        self._writer.add(point)
        self._curves.update(point.scalars)
        self._step = point.step

    def close(self) -> None:
        """Raises UserError."""
        if self._writer:
            self._writer.close()


def follow(feeds: Sequence[Feed], is_live: Callable[[], bool]) -> list[Feed]:
    """Carries to every destination until the run is no longer live, and says why one cannot be written, which stops no
    other. Returns those that have everything."""
    going = list(feeds)
    try:
        while going:
            is_last = not is_live()  # before it is read, or the last events were missed
            going = [feed for feed in going if _succeeds(feed.carry)]
            if is_last:
                break
            time.sleep(POLL_SECONDS)
    finally:
        closed = [feed for feed in feeds if _succeeds(feed.close)]
    return [feed for feed in going if feed in closed]


def _succeeds(act: Callable[[], None]) -> bool:
    try:
        act()
    except FileNotFoundError:  # nothing is recorded yet
        return True
    except UserError as error:
        say(*error.problems)
        return False
    return True
