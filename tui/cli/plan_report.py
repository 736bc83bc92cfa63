"""The JSON of `shardtui plan`, with what a search found, and the table of topologies."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict
from rich.table import Table
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.user_error import refuse
from ...engine.hlo.step_cost import Basis, Bound
from ...engine.planning.finalists import batch_limits, expected_figure
from ...engine.planning.goal import CurvePoint, Goal, ranked
from ...engine.planning.ranking import Board, Row, Settings
from ...engine.spec.topology import Topology, load_topology
from ..client.planner import Planner
from ..state import board_rows
from ..state.recommendation import figure_words, recommendation
from ..terminal.plain_table import Column, figure, plain_table, right, table_of

SCHEMA = 4
Prices = Mapping[str, float]
"""Chip, such as `v5p`, to US dollars an hour."""
SHOWN = 10
"""Rows of the table of a search, unless more are compiled."""
Ending = Literal["done", "out of time", "interrupted", "estimates only"]


class PlannedPreset(Row, frozen=True, kw_only=True):
    """One preset on a slice; of a search one candidate: a preset with settings."""

    topology: str
    """The slice, such as `v5p:4x4x4`."""
    slices: int
    """Number of such slices, connected by DCN."""
    bound: Bound | None
    """The longest part of a step; null if unknown."""
    overlapped_share: float | None
    """Share of the bytes sent, 0 to 1, that `compiled` sends while the device computes; null without a program, or if
    nothing is sent."""
    largest_batch: int | None
    """With `--fit`, the largest batch size that was compiled and fits with nothing else changed, of a preset that is
    too large; null if there is none."""
    tokens_per_chip_hour: float | None
    """Tokens that a chip trains in an hour, by the step time of `compiled`, else of `estimate`; null if unknown."""
    tokens_per_dollar: float | None
    """The same ÷ the `--price` of the chip; null without one."""


class ChosenPreset(Struct, frozen=True, kw_only=True):
    """The choice of a search."""

    preset: str
    """Name of the preset."""
    settings: Settings
    """Settings that the search chose, as `--set` takes them."""
    figure: float
    """Value of the goal."""
    basis: Basis
    """Source of the figure."""
    file: str
    """The preset as a file, which `train --preset` takes."""
    command: str
    """The command that trains with it."""


class SearchReport(Struct, frozen=True, kw_only=True):
    """A search on one topology."""

    topology: str
    """A slice such as `v5p:4x4x4`, or several: `2*v5p:4x4x4`."""
    goal: Goal
    """Most tokens of all devices per second, by the compiler's schedule where there is one; most
    tokens in a batch that a step holds at once; or fewest bytes that a device sends per token."""
    minutes: float
    """Minutes that it might take."""
    ended: Ending
    """Why it ended: `done` if no candidate that is left is likely to be better."""
    estimated: int
    """Candidates that were estimated; 0 with `--fit`, which compiles only."""
    has_all_estimates: bool
    """False if a third of the minutes was over before all candidates were estimated."""
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


class PlanReport(Struct, frozen=True, kw_only=True):
    """Predictions for one step under each preset on a slice; nothing is measured."""

    schema: int = SCHEMA
    """Version of this schema; grows when a field changes its meaning or is removed."""
    model: str
    """Name of the model."""
    topology: str
    """The slice, such as `v5p:4x4x4`; of several topologies the first."""
    slices: int
    """Number of such slices, connected by DCN."""
    recommendation: str
    """The best one of each topology and why, a sentence each."""
    rows: list[PlannedPreset]
    """Topology by topology, best first: presets that fit by step time, then those that are too large by how much, then
    unknown cost, then invalid ones. Of a search, the fitting ones by its goal, compiled ones first."""
    searches: list[SearchReport]
    """With `--search` or `--fit`, what was found on each topology."""


def plan_report(*boards: Board, prices: Prices | None = None, searches: Sequence[SearchReport] = ()) -> PlanReport:
    """Returns the JSON form of boards, each ranked. `searches`: one for each board, or none."""
    goals: list[Goal | None] = [search.goal for search in searches] or [None] * len(boards)
    planned = [(board, load_topology(board.topology)) for board in boards]
    first, topology = planned[0]
    return PlanReport(
        model=first.model,
        topology=topology.name,
        slices=topology.slices,
        recommendation="; ".join(
            recommendation(board.rows, where.title, goal) for goal, (board, where) in zip(goals, planned, strict=True)
        ),
        rows=[
            _planned(row, board, prices or {})
            for goal, board in zip(goals, boards, strict=True)
            for row in ranked(board.rows, goal)
        ],
        searches=list(searches),
    )


def _planned(row: Row, board: Board, prices: Prices) -> PlannedPreset:
    topology, cost, compiled = load_topology(board.topology), row.timed, row.compiled
    limits = {} if row.settings else batch_limits(board.rows)
    tokens = cost.tokens_per_second if cost else None
    per_chip_hour = None if tokens is None else tokens * 3600 / topology.chips
    price = prices.get(topology.name.partition(":")[0])
    return PlannedPreset(
        **asdict(row),
        topology=topology.name,
        slices=topology.slices,
        bound=cost.bound if cost else None,
        overlapped_share=compiled.overlapped_share if compiled else None,
        largest_batch=limits.get(row.preset, (None,))[0],
        tokens_per_chip_hour=per_chip_hour,
        tokens_per_dollar=per_chip_hour / price if per_chip_hour is not None and price else None,
    )


def search_report(planner: Planner, was_interrupted: bool, chosen: ChosenPreset | None) -> SearchReport:
    """Returns the JSON form of a search."""
    board, request = planner.board, planner.search
    assert board is not None and request is not None
    ended = "interrupted" if was_interrupted else "out of time" if planner.is_out_of_time else "done"
    return SearchReport(
        topology=board.topology,
        goal=request.goal,
        minutes=request.minutes,
        ended=ended if planner.compiles or was_interrupted else "estimates only",
        estimated=board.estimated,
        has_all_estimates=board.has_all_estimates,
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
    table = plain_table(right("after"), right("best so far"), "preset", title="what the time brought")
    for point in report.curve:
        words = figure_words(point.figure, report.goal)
        table.add_row(f"{point.minutes:.1f} min", Text(words), Text(point.title, overflow="fold"))
    return table


def search_lines(report: SearchReport) -> list[str]:
    estimated = f"{formatting.counted(report.estimated, 'candidate')} estimated, " if report.estimated else ""
    tried = f"{estimated}{report.compiled} of {'the best ' if report.estimated else ''}{report.finalists} compiled"
    ends: dict[Ending, str] = {
        "done": "none that is left is likely to be better",
        "out of time": f"the {report.minutes:g} minutes are over",
        "interrupted": "interrupted",
        "estimates only": "by estimates only",
    }
    lines = [f"{tried}: {ends[report.ended]}"]
    if not report.has_all_estimates:
        lines.append("the time for estimates was over before all candidates were tried: give more --minutes")
    if report.expected is not None and report.ended in ("out of time", "interrupted"):
        lines.append(
            f"more time: the best of the others is expected to reach {figure_words(report.expected, report.goal)}"
        )
    if report.chosen:
        lines += [f"written to {report.chosen.file}", f"train with it: {report.chosen.command}"]
    return lines


def check_prices(prices: Prices, topologies: Sequence[Topology]) -> None:
    """Raises UserError if a price is of a chip that no topology has."""
    planned = {topology.name.partition(":")[0] for topology in topologies}
    problems = [
        f"--price {chip}={price:g}: no --topology has that chip: the chips are {', '.join(sorted(planned))}"
        for chip, price in prices.items()
        if chip not in planned
    ]
    refuse(problems)


def topologies_table(rows: Sequence[PlannedPreset], prices: Prices) -> Table:
    """Returns a table of the first row of each topology, those that fit and train most tokens for a price first."""
    counted = board_rows.counted_in(rows)
    columns: list[Column[PlannedPreset]] = [
        Column("topology", lambda row: _topology(row).title),
        figure("chips", lambda row: _topology(row).chips, "{:,}".format),
        Column("preset", lambda row: row.preset),
        Column("verdict", board_rows.verdict),
        Column("peak", board_rows.peak_of_capacity, is_figure=True),
        figure("step time", lambda row: row.step_seconds, formatting.seconds),
        figure(f"{counted}/s", board_rows.tokens_per_second, formatting.count),
        figure(f"{counted}/chip-hour", lambda row: row.tokens_per_chip_hour, formatting.count),
        *([figure(f"{counted}/$", lambda row: row.tokens_per_dollar, formatting.count)] if prices else []),
    ]
    best = {(row.topology, row.slices): row for row in reversed(rows)}.values()
    ordered = sorted(
        best, key=lambda row: (row.verdict != "fits", -(row.tokens_per_dollar or 0), -(row.tokens_per_chip_hour or 0))
    )
    return table_of(columns, ordered, title="best of each topology, predicted")


def _topology(row: PlannedPreset) -> Topology:
    return load_topology(f"{row.slices}*{row.topology}")
