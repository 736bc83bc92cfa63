"""`shardtui plan`: ranks presets on a TPU slice you need not have, by formula and by the TPU compiler."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.planning import compilers
from ...engine.planning.goal import in_order, pick
from ...engine.planning.ranking import Board, Cost, Row
from ...engine.spec.config import RunConfig, UserModel
from ...engine.spec.search import SearchRequest
from ...engine.spec.topology import load_topology
from ..client.engine_process import NoAnswer
from ..client.fitter import Fitter
from ..client.planner import Planner, is_far_too_large
from ..state import board_rows
from ..state.chip_hours import Prices, check_prices
from ..state.pipeline_words import pipeline_words
from ..state.recommendation import recommendation
from ..terminal.clean import clean, json_line, warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED
from ..terminal.plain_console import table_console
from ..terminal.plain_table import plain_table, right
from .chosen_preset import default_place, write_chosen
from .memory_report import peak_table
from .plan_fit import fit_tables, follow_fits
from .plan_progress import follow
from .plan_report import plan_report
from .profile_report import profile_tables
from .search_report import SearchReport, curve_table, search_lines, search_report, shown
from .topologies_report import topologies_table

NOT_TUNED = (
    "compiled for a description of the GPU, with plain attention and nothing autotuned: on a real one memory may "
    "differ, and steps take longer than these bounds"
)
UNLIMITED_WIDTH = 10_000
"""Width at which any table fits."""


@dataclass(frozen=True)
class Asked:
    """What of a plan is asked for."""

    compiles: bool
    """Whether the compiler follows the estimates."""
    search: SearchRequest | None
    """What is searched; None for a plan of presets."""
    place: Path | None
    """Where the preset that a search chose is written; None for a place of its own."""
    train: Sequence[str]
    """The words of the command that trains, without a preset."""
    accounts: bool
    """Whether it shows where the time of a step goes."""
    memory: bool
    """Whether it shows what fills the memory."""
    fits: bool
    """Whether it compiles what may make presets fit that are too large."""
    prices: Prices
    """Of chips."""
    as_json: bool
    """Whether the answer is JSON."""


def plan(config: RunConfig, topologies: Sequence[str], presets: Sequence[str], asked: Asked) -> int:
    """Prints the ranked presets and returns the exit code; Ctrl-C prints what is known so far. Raises Invalid."""
    if problems := _problems(config, asked, presets):
        raise Invalid(*problems)
    found = list(map(load_topology, topologies))
    check_prices(asked.prices, found)
    warn(*(f"estimates only: {why}" for why in dict.fromkeys(map(compilers.missing, found)) if why and asked.compiles))
    boards, searches, code = list[Board](), list[SearchReport](), FINE
    for number, topology in enumerate(topologies):
        planner = Planner(config, topology, presets, asked.compiles, accounts=asked.accounts, search=asked.search)
        warn(*(() if number else planner.preset_problems))
        try:
            asyncio.run(follow(planner))
            asyncio.run(follow_fits(planner, [Fitter(config, topology, name) for name in presets if asked.fits]))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except NoAnswer as error:
            warn(*error.problems)
            return FAILED
        if planner.board:
            boards.append(planner.board)
            searches += [_searched(planner, bool(code), asked)] if asked.search else []
        if code:
            break
    if boards:
        _answer(boards, searches, config, asked)
    return code or (FAILED if any(search.chosen is None for search in searches) else FINE)


def _searched(planner: Planner, was_interrupted: bool, asked: Asked) -> SearchReport:
    """Writes the preset that a search chose, and returns the report."""
    assert planner.board is not None and asked.search is not None
    topology, best = load_topology(planner.board.topology), pick(planner.board.rows, asked.search.goal)
    if best is None:
        return search_report(planner, was_interrupted, "", "")
    place = asked.place or default_place(planner.board.model, topology)
    return search_report(planner, was_interrupted, str(place), write_chosen(best, place, topology, asked.train))


def _problems(config: RunConfig, asked: Asked, presets: Sequence[str]) -> list[str]:
    has_trace = isinstance(config.model, UserModel)
    needs = {
        "--profile": (asked.accounts, "the compiler's schedule"),
        "--memory": (
            asked.memory and not has_trace,
            "the compiler's schedule, or a model of your own, which is traced",
        ),
        "--fit": (asked.fits, "the compiler"),
    }
    wrong = [option for option, (is_asked, _) in needs.items() if is_asked and not asked.compiles]
    found = [f"{option} needs {needs[option][1]}: leave out --estimate" for option in wrong]
    return found + (
        ["--fit compiles up to 20 programs for a preset: name one with --preset"] if asked.fits and not presets else []
    )


def _answer(boards: Sequence[Board], searches: Sequence[SearchReport], config: RunConfig, asked: Asked) -> None:
    if asked.as_json:
        print(json_line(plan_report(*boards, prices=asked.prices, searches=searches)))
        return
    console = table_console()
    for number, board in enumerate(map(clean, boards)):
        search = clean(searches[number]) if searches else None
        console.print(*_tables(board, config, console, asked.memory, search), sep="\n")
        console.print(
            *(search_lines(search) if search else []), sep="\n", soft_wrap=True, markup=False, highlight=False
        )
    if len(boards) > 1 or asked.prices:
        console.print(topologies_table(list(map(clean, boards)), asked.prices))


def _tables(
    board: Board, config: RunConfig, console: Console, shows_memory: bool, search: SearchReport | None
) -> list[RenderableType]:
    goal = search.goal if search else None
    rows = in_order(board.rows, goal)
    rows = shown(rows) if search else rows
    tables: list[RenderableType] = [*board_tables(rows, _title(board, config, bool(search)), console)]
    wired = rows[:1] if search else rows
    tables += [_wiring_table(wired)] if any(map(board_rows.used_wirings, wired)) else []
    tables += [Text(f"{row.title}: {line}") for row in rows for line in board_rows.findings(row)]
    tables += [Text(f"{row.title}: {words}") for row in rows if (words := board_rows.scheduled(row))]
    tables += [Text(f"{row.title}: {pipeline_words(row.pipeline)}") for row in rows if row.pipeline]
    tables += [Text(line) for line in (*board_rows.problems(rows), *board_rows.no_estimates(rows))]
    left_out = [row for row in rows if row.estimate and not row.compiled and is_far_too_large(row.estimate)]
    compiled = any(row.compiled for row in rows)
    if left_out and compiled:
        titles = ", ".join(row.title for row in left_out)
        tables.append(Text(f"far too large {board_rows.estimated_by(left_out)}, so not compiled: {titles}", "dim"))
    accounts = [(row.title, row.compiled.account) for row in rows if row.compiled and row.compiled.account]
    tables += [table for name, account in accounts for table in profile_tables(name, account, console.width)]
    tables += _peak_tables(rows) if shows_memory else []
    tables += [table for row in rows for table in fit_tables(row)]
    tables += [Text(NOT_TUNED, "dim")] if load_topology(board.topology).chip.target and compiled else []
    tables += [curve_table(search)] if search and search.curve else []
    return [*tables, Text(f"→ {recommendation(board.rows, load_topology(board.topology).title, goal)}", "bold")]


def _peak_tables(rows: Sequence[Row]) -> list[Table]:
    """Of the compiled programs; of a row without one by its trace, if it has that."""
    costs = [(row.title, cost) for row in rows if (cost := _with_peak(row))]
    return [
        peak_table(name, at, cost.peak_buffers, cost.peak_bytes if cost.basis == "compiler" else None)
        for name, cost in costs
        if (at := cost.at_peak)
    ]


def _with_peak(row: Row) -> Cost | None:
    return next((cost for cost in (row.compiled, row.estimate) if cost and cost.at_peak), None)


def _title(board: Board, config: RunConfig, is_searched: bool) -> str:
    slice_ = load_topology(board.topology)
    title = f"{board.model} on {slice_.title}: {slice_.devices:,} × {figures.size(slice_.chip.memory)}"
    return title if is_searched else f"{title}, {config.batch} per step"


def _lines(cells: str | list[str]) -> str:
    return "\n".join(cells.split(", ") if isinstance(cells, str) else cells)


CELLS: dict[str, Callable[[Row], str]] = {
    "preset": lambda row: row.title,
    "verdict": board_rows.verdict,
    "peak": board_rows.peak_of_capacity,
    "sent/step": lambda row: _lines([*board_rows.most_sent(row), *board_rows.overlapped(row)]),
    "step time": board_rows.step_time,
    "tokens/s": board_rows.tokens_rate,
    "MFU": board_rows.utilisation,
    "bound": board_rows.bound,
    "from": board_rows.source,
    "est. error": lambda row: _lines(board_rows.estimate_errors(row)),
}
RIGHT_ALIGNED = ("peak", "step time", "tokens/s", "MFU")
NARROW_TABLES = (
    ("preset", "verdict", "peak", "step time", "bound"),
    ("preset", "tokens/s", "MFU", "sent/step", "from", "est. error"),
)


def board_tables(rows: Sequence[Row], title: str, console: Console) -> list[Table]:
    """Returns one table if the console is wide enough, else two."""
    single = _board_table(rows, tuple(CELLS), title)
    if console.measure(single, options=console.options.update(width=UNLIMITED_WIDTH)).maximum <= console.width:
        return [single]
    return [_board_table(rows, names, "" if index else title) for index, names in enumerate(NARROW_TABLES)]


def _board_table(rows: Sequence[Row], names: Sequence[str], title: str) -> Table:
    table = plain_table(
        *(_column(name) for name in names),
        title=title,
    )
    for row in rows:
        table.add_row(*(Text(CELLS[name](row)) for name in names))
    return table


def _column(name: str) -> Column:
    if name in RIGHT_ALIGNED:
        return right(name)
    if name == "preset":  # the name of a mesh may be long
        return Column(name, overflow="fold")
    return Column(name, no_wrap=name != "sent/step")


def _wiring_table(rows: Sequence[Row]) -> Table:
    table = plain_table(
        "preset", "axis", right("devices"), "runs on", right("bandwidth"), title="links of each mesh axis"
    )
    for row in rows:
        for index, wired in enumerate(board_rows.used_wirings(row)):
            cells = (figures.over(wired.axes), str(wired.size), board_rows.links(wired), board_rows.rate(wired))
            table.add_row(*(Text(cell) for cell in ("" if index else row.title, *cells)))
    return table
