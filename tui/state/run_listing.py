"""The runs of this host, and of several hosts together, with their columns."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import asdict

from ...engine.base import formatting
from ...engine.base.user_error import UserError, noting
from ...engine.wire.run_directory import RunDirectory, all_runs
from ..terminal.plain_table import Column, column_of, figure
from .goodput import Goodput
from .losses import Evaluations, Losses
from .run_summary import RUNS, RunSummary, recorded, summarise


class RunInfo(RunSummary, frozen=True, kw_only=True):
    """One run, live or ended, and its goodput."""

    goodput: Goodput
    """Where its wall time went."""
    curve: list[float | None]
    """Mean losses of 64 equal parts of its steps, or of each step if it has fewer; null where none was finite."""


WITH_GOODPUT: Sequence[Column[RunInfo]] = (
    *RUNS,
    figure("goodput", lambda run: run.goodput.share, formatting.percent, 6, unknown="–"),
)
COLUMNS: Sequence[Column[RunInfo]] = (*WITH_GOODPUT, Column("process", lambda run: str(run.pid or "–")))


class RunListing(Struct, frozen=True, kw_only=True):
    """All runs."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    runs: list[RunInfo]
    """The runs, oldest first."""
    problems: list[str] = []
    """Why other runs cannot be read."""


def listed() -> RunListing:
    runs: list[RunInfo] = []
    problems: list[str] = []
    for directory in all_runs():
        with noting(problems):
            summary = summarise(directory)
            state = recorded(directory)
            goodput = state.wall_time.until(time.time() if summary.is_live else None)
            runs.append(RunInfo(**asdict(summary), goodput=goodput, curve=curve_of(state.losses)))
    return RunListing(runs=runs, problems=problems)


def delete(run: RunDirectory) -> int:
    """Deletes a run, and returns the bytes of its files. Raises UserError if it is live, or they cannot be deleted."""
    try:
        with run.hold_ended():
            size = run.bytes
            run.discard()
    except OSError as error:
        raise UserError(f"run {run.name}: {error.filename}: cannot be deleted: {error.strerror}") from error
    return size


CURVE_PARTS = 64


def curve_of(losses: Losses) -> list[float | None]:
    """Returns `RunInfo.curve`, in seven digits."""
    parts, steps = min(CURVE_PARTS, len(losses)), len(losses)
    means = (losses.mean(steps * part // parts, steps * (part + 1) // parts) for part in range(parts))
    return [None if mean is None else float(f"{mean:.7g}") for mean in means]


def losses_of(run: RunInfo) -> Evaluations:
    """Returns the losses of a run as far as its curve has them, each at the end of its part, and the last one."""
    found = Evaluations()
    for part, loss in enumerate([*run.curve[:-1], run.loss] if run.curve else [], 1):
        found.add(run.step * part // len(run.curve), loss)
    return found


@dataclass
class Origin:
    """A host, and what it last said."""

    host: str
    """Empty for this one."""
    runs: Sequence[RunInfo] = ()
    problem: str = "asking…"
    """Why its runs are not known; empty if they are."""
    has_answered: bool = False

    def take(self, runs: Sequence[RunInfo]) -> list[RunInfo]:
        """Takes an answer. Returns the runs with trouble that the answer before did not name; none of the first one."""
        before = {run.run: run.trouble for run in self.runs}
        found = [run for run in runs if run.trouble and run.trouble != before.get(run.run)] if self.has_answered else []
        self.runs, self.problem, self.has_answered = runs, "", True
        return found


@dataclass(frozen=True)
class BoardRow:
    host: str
    run: RunInfo | None
    """None for a host whose runs are not known."""
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.host}:{self.run.run if self.run else ''}"


def board(origins: Sequence[Origin]) -> Mapping[str, BoardRow]:
    """Returns the rows by key: runs that train, then others, the newest first, then hosts without an answer."""
    runs = [BoardRow(origin.host, run, origin.problem) for origin in origins for run in origin.runs]
    runs.sort(key=lambda row: (not (row.run and row.run.is_live), -(row.run.active_at if row.run else 0.0)))
    silent = [BoardRow(origin.host, None, origin.problem) for origin in origins if origin.problem and not origin.runs]
    return {row.key: row for row in [*runs, *silent]}


HOST_COLUMNS: Sequence[Column[BoardRow]] = (
    Column("host", lambda row: row.host or "here"),
    *(column_of(column, lambda row: row.run) for column in WITH_GOODPUT),
    Column("answer", lambda row: row.problem, leaves=8),
)
