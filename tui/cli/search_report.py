"""What a search found: its part of the JSON of `shardtui plan`, and its tables."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from ...engine.planning.finalists import expected_figure
from ...engine.planning.goal import CurvePoint, figure, pick
from ...engine.planning.ranking import Basis, Choice, Row
from ...engine.spec.search import Goal
from ..client.planner import Planner
from ..state.search_words import figure_words
from ..terminal.plain_table import plain_table, right

SHOWN = 10
"""Rows of the table of a search, unless more are compiled."""
Ending = Literal["done", "out of time", "interrupted", "estimates only"]


class ChosenPreset(Struct, frozen=True, kw_only=True):
    """What a search chose."""

    preset: str
    """Name of the preset."""
    settings: dict[str, Choice]
    """What the search chose of `--set`."""
    figure: float
    """What the goal is measured by."""
    basis: Basis
    """What the figure is made from."""
    file: str
    """The preset as a file, which `train --preset` takes."""
    command: str
    """The command that trains with it."""


class SearchReport(Struct, frozen=True, kw_only=True):
    """A search on one topology."""

    topology: str
    """A slice such as `v5p:4x4x4`, or several: `2*v5p:4x4x4`."""
    goal: Goal
    """What was searched: most tokens of all devices per second, by the compiler's schedule where there is one; most
    tokens in a batch that a step holds at once; or fewest bytes that a device sends per token."""
    minutes: float
    """Minutes that it might take."""
    ended: Ending
    """Why it ended: `done` if no candidate that is left is likely to be better."""
    estimated: int
    """Candidates that were estimated."""
    finalists: int
    """The best of these, in `rows`."""
    compiled: int
    """How many of them were compiled."""
    chosen: ChosenPreset | None
    """The best; null if none fits, or the search was interrupted before the estimates."""
    curve: list[CurvePoint]
    """The best so far, by the time at which it was compiled."""
    expected: float | None
    """The best figure of those that are not compiled, by estimates that are corrected by what is compiled; null if none
    is left. It is what more time would bring."""


def search_report(planner: Planner, was_interrupted: bool, file: str, command: str) -> SearchReport:
    """Returns the JSON form of a search. `file`, `command`: of what it chose; empty if that is nothing."""
    board, request = planner.board, planner.search
    assert board is not None and request is not None
    best = pick(board.rows, request.goal)
    chosen = None
    if best is not None:
        found, cost = figure(best, request.goal), best.cost
        assert found is not None and cost is not None
        chosen = ChosenPreset(
            preset=best.preset, settings=best.settings, figure=found, basis=cost.basis, file=file, command=command
        )
    ended = "interrupted" if was_interrupted else "out of time" if planner.is_out_of_time else "done"
    return SearchReport(
        topology=board.topology,
        goal=request.goal,
        minutes=request.minutes,
        ended=ended if planner.compiles or was_interrupted else "estimates only",
        estimated=board.estimated,
        finalists=len(board.rows),
        compiled=sum(row.compiled is not None for row in board.rows),
        chosen=chosen,
        curve=planner.curve,
        expected=expected_figure(board.rows, request.goal),
    )


def shown(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of a search that its table shows: what is compiled or failed, and the best of the others."""
    tried = [row for row in rows if row.compiled or row.problems]
    others = [row for row in rows if row not in tried]
    return [*tried, *others[: max(0, SHOWN - len(tried))]]


def curve_table(report: SearchReport) -> Table:
    """Returns the best so far by time."""
    table = plain_table(right("after"), right("best so far"), "preset", title="what the time brought")
    for point in report.curve:
        words = figure_words(point.figure, report.goal)
        table.add_row(f"{point.minutes:.1f} min", Text(words), Text(point.title, overflow="fold"))
    return table


def search_lines(report: SearchReport) -> list[str]:
    """Returns how the search went, and how to train with what it chose."""
    tried = f"{report.estimated:,} candidates estimated, {report.compiled} of the best {report.finalists} compiled"
    ends: dict[Ending, str] = {
        "done": "none that is left is likely to be better",
        "out of time": f"the {report.minutes:g} minutes are over",
        "interrupted": "interrupted",
        "estimates only": "by estimates only",
    }
    lines = [f"{tried}: {ends[report.ended]}"]
    if report.expected is not None and report.ended in ("out of time", "interrupted"):
        lines.append(
            f"more time: the best of the others is expected to reach {figure_words(report.expected, report.goal)}"
        )
    if report.chosen:
        lines += [f"written to {report.chosen.file}", f"train with it: {report.chosen.command}"]
    return lines
