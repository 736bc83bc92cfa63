"""The curves of a run as a CSV file: a row for each step, a column for each scalar."""

import contextlib
import csv
import io
import math
import os
from pathlib import Path
from typing import BinaryIO

from ...engine.base.atomic_write import require_in_place, writing
from ...engine.base.output import printable
from ...engine.base.regular_file import open_regular
from ...engine.base.user_error import UserError
from .points import Point

FIXED = ("run", "step", "time")
"""The first columns; `time` in seconds since the epoch."""
CLOCK_SECONDS = 1e-3
"""More than the digits of a time in the file leave out."""
MAX_HEADER_BYTES = 2**20


class CsvFile:
    """Appends rows. At the begin and where a scalar is new, `flush` replaces the whole file. Every method raises
    UserError if the file cannot be written."""

    def __init__(self, path: Path, run: str, began: float) -> None:
        """`began`: time of the run's first event. Raises UserError if the file holds anything but the same run."""
        self.where = str(path)
        require_own(path, run, began)
        self._path, self._run = path.resolve(), run  # a link stays one
        self._columns: dict[str, None] = {}
        with writing(self.where):
            self._file = self._new_file()
        self._written_to = Path(self._file.name)
        """Where the rows are: in a new file until `flush`."""
        self._row: Point | None = None
        """The last row, to which scalars may come."""
        self._row_begins = 0
        self._is_row_written = False

    def add(self, point: Point) -> None:
        with writing(self.where):
            if new := point.scalars.keys() - self._columns.keys():
                self._columns |= {name: None for name in point.scalars if name in new}
                self._rewrite()
            if self._row and self._row.step == point.step:
                self._row.scalars.update(point.scalars)
                self._is_row_written = False
            else:
                self._write_row()
                self._begin_row(Point(point.step, point.time, dict(point.scalars)))

    def flush(self) -> None:
        with writing(self.where):
            self._write_row()
            self._file.flush()
            require_in_place(self._written_to, self._file.fileno())
            if self._written_to != self._path:
                self._written_to.replace(self._path)
                self._written_to = self._path

    def close(self) -> None:
        """Closes the file, and removes a new one without `flush`."""
        with contextlib.suppress(OSError):  # it was flushed, or that has failed
            self._file.close()
        self._discard()

    def _begin_row(self, row: Point | None) -> None:
        self._row, self._row_begins, self._is_row_written = row, self._file.tell(), False

    def _write_row(self) -> None:
        if self._row is None or self._is_row_written:
            return
        if self._file.tell() != self._row_begins:  # it was written with fewer scalars
            self._file.seek(self._row_begins)
            self._file.truncate()
        values = [repr(self._row.scalars[name]) if name in self._row.scalars else "" for name in self._columns]
        self._file.write(f"{self._run},{self._row.step},{self._row.time:.6f},{','.join(values)}\n".encode())
        self._is_row_written = True

    def _rewrite(self) -> None:
        """Begins a new file with the columns of now and the rows before the last one, which is written anew."""
        require_in_place(self._written_to, self._file.fileno())
        self._file.close()
        self._file = self._new_file()
        with self._written_to.open("rb") as rows:
            rows.readline()
            while rows.tell() < self._row_begins:
                self._file.write(self._padded(rows.readline().rstrip(b"\n")))
        self._begin_row(self._row)
        self._discard()
        self._written_to = Path(self._file.name)

    def _new_file(self) -> BinaryIO:
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow([*FIXED, *map(printable, self._columns)])
        file = self._path.with_name(f".{self._path.name}.{os.urandom(4).hex()}.new").open("xb")
        file.write(header.getvalue().encode())
        return file

    def _padded(self, row: bytes) -> bytes:
        return row + b"," * (len(FIXED) + len(self._columns) - 1 - row.count(b",")) + b"\n"

    def _discard(self) -> None:
        if self._written_to != self._path:
            with contextlib.suppress(OSError):
                self._written_to.unlink()


def require_own(path: Path, run: str, began: float) -> None:
    """Raises UserError if there is a file that is not of the run, which `began` tells from others of its name."""
    try:
        with open_regular(path) as file:
            lines = [file.readline(MAX_HEADER_BYTES).decode(errors="replace") for _ in range(2)]
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}: choose another file") from error
    header, first = (next(csv.reader([line]), list[str]()) for line in lines)
    has_curves = header[:3] == [*FIXED]
    if has_curves and (not first or (first[0] == run and _number(first[2:3]) > began - CLOCK_SECONDS)):
        return
    if any(lines):
        what = f"has the curves of another run, {printable(first[0])}" if has_curves else "is not a file of curves"
        raise UserError(f"{path}: this file exists, and {what}: remove it, or choose another file")


def _number(fields: list[str]) -> float:
    try:
        return float(*fields)
    except ValueError:
        return -math.inf
