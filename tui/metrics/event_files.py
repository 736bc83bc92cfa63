"""The curves of a run as event files of TensorBoard, by its own writer of records."""

import contextlib
from importlib import import_module
from pathlib import Path
from typing import Any

from ...engine.base.atomic_write import require_in_place, writing
from ...engine.base.user_error import UserError
from .points import Point

VERSION = "brain.Event:2"
"""From this version of files on, TensorBoard's reader drops the steps from a START event's on."""


class EventFile:
    """Appends events to a new file in the run's directory. They replace those of the run's earlier files. Every method
    raises UserError if the file cannot be written."""

    def __init__(self, directory: Path, began: float) -> None:
        """`directory`: the run's own. `began`: time of its first event. Raises UserError if it has files of another
        run."""
        self._events: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
        records: Any = import_module("tensorboard.summary.writer.record_writer")
        self.where = str(directory)
        require_own(directory, began)
        earlier = sorted(path for path in directory.glob(f"{_prefix(began)}*") if path.suffix[1:].isdecimal())
        number = 1 + max((int(path.name.rpartition(".")[2]) for path in earlier), default=0)
        with writing(self.where):
            directory.mkdir(parents=True, exist_ok=True)
            self._path = directory / f"{_prefix(began)}{number:04d}"
            self._file = self._path.open("xb")
            self._records = records.RecordWriter(self._file)
            self._is_complete = False
            self._write(began, 0, file_version=VERSION)
            self._write(began, 0, session_log=self._events.SessionLog(status=self._events.SessionLog.START))
            self._file.flush()
            for path in earlier[:-1]:  # a TensorBoard that runs reads the last one until it finds this one
                path.unlink(missing_ok=True)

    def add(self, point: Point) -> None:
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in point.scalars.items()]
        with writing(self.where):
            self._write(point.time, point.step, summary=self._summaries.Summary(value=values))

    def flush(self) -> None:
        with writing(self.where):
            self._file.flush()
            require_in_place(self._path, self._file.fileno())
            self._is_complete = True

    def close(self) -> None:
        """Closes the file, and removes it if it never had as much as the run."""
        with contextlib.suppress(OSError):  # it was flushed, or that has failed
            self._file.close()
        if not self._is_complete:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _write(self, time: float, step: int, **content: Any) -> None:
        self._records.write(self._events.Event(wall_time=time, step=step, **content).SerializeToString())


def require_own(directory: Path, began: float) -> None:
    """Raises UserError if the directory has event files that are not of the run: they would be one curve with its."""
    others = [path for path in directory.glob("*tfevents*") if not path.name.startswith(_prefix(began))]
    if others:
        raise UserError(
            f"{directory}: has event files of another run, such as {min(others).name}: choose another directory"
        )


def _prefix(began: float) -> str:
    """Begins the names of the run's files, which TensorBoard reads in their order."""
    return f"events.out.tfevents.{int(min(began, 1e10)):010d}.shardtui."
