"""`shardtui plan`: ranks presets on a TPU slice you need not have, by formula and by the TPU compiler."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.planning import compilers
from ...engine.planning.ranking import Board, Row, ranked
from ...engine.spec.config import RunConfig
from ...engine.spec.topology import load_topology
from ..client.engine_process import NoAnswer
from ..client.fitter import Fitter
from ..client.planner import Planner, is_far_too_large
from ..state import board_rows
from ..state.chip_hours import Prices, check_prices
from ..state.pipeline_words import pipeline_words
from ..state.predicted_words import predicted_times
from ..state.recommendation import recommendation
from ..terminal.clean import clean, json_line, printable, warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED
from ..terminal.plain_console import table_console
from ..terminal.plain_table import plain_table, right
from .memory_report import peak_table
from .plan_fit import fit_tables, follow_fits
from .plan_report import plan_report
from .profile_report import profile_tables
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
    searches: bool
    """Whether the best other meshes are planned, too."""
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
    if problems := _problems(asked, presets):
        raise Invalid(*problems)
    found = list(map(load_topology, topologies))
    check_prices(asked.prices, found)
    warn(*(f"estimates only: {why}" for why in dict.fromkeys(map(compilers.missing, found)) if why and asked.compiles))
    boards, code = list[Board](), FINE
    for number, topology in enumerate(topologies):
        planner = Planner(config, topology, presets, asked.compiles, asked.searches, accounts=asked.accounts)
        warn(*(() if number else planner.preset_problems))
        try:
            asyncio.run(_follow(planner))
            asyncio.run(follow_fits(planner, [Fitter(config, topology, name) for name in presets if asked.fits]))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except NoAnswer as error:
            warn(*error.problems)
            return FAILED
        boards += [planner.board] if planner.board else []
        if code:
            break
    if boards:
        _answer(boards, config, asked)
    return code


def _problems(asked: Asked, presets: Sequence[str]) -> list[str]:
    needs = {
        "--profile": (asked.accounts, "the compiler's schedule"),
        "--memory": (asked.memory, "the compiler's schedule"),
        "--fit": (asked.fits, "the compiler"),
    }
    wrong = [option for option, (is_asked, _) in needs.items() if is_asked and not asked.compiles]
    found = [f"{option} needs {needs[option][1]}: leave out --estimate" for option in wrong]
    return found + (
        ["--fit compiles up to 20 programs for a preset: name one with --preset"] if asked.fits and not presets else []
    )


async def _follow(planner: Planner) -> None:
    """Prints on stderr what is being compiled, and the outcome."""
    before = None
    async for board in planner.boards():
        if before is not None and planner.compiling is None:
            _print_outcome(board, before.preset, time.monotonic() - before.began)
        elif planner.compiling is not None:
            now = planner.compiling
            print(f"compiling {printable(now.preset)}, {now.number} of {now.count}", file=sys.stderr)
        before = planner.compiling


def _print_outcome(board: Board, preset: str, seconds: float) -> None:
    row = next(row for row in board.rows if row.preset == preset)
    outcome = board_rows.verdict(row) if row.compiled else " ".join(row.problems)
    print(f"  {printable(outcome)}, after {figures.seconds(seconds)}", file=sys.stderr)


def _answer(boards: Sequence[Board], config: RunConfig, asked: Asked) -> None:
    if asked.as_json:
        print(json_line(plan_report(*boards, prices=asked.prices)))
        return
    console = table_console()
    for board in map(clean, boards):
        console.print(*_tables(board, config, console, asked.memory), sep="\n")
    if len(boards) > 1 or asked.prices:
        console.print(topologies_table(list(map(clean, boards)), asked.prices))


def _tables(board: Board, config: RunConfig, console: Console, shows_memory: bool) -> list[RenderableType]:
    rows = ranked(board.rows)
    tables: list[RenderableType] = [*board_tables(rows, _title(board, config), console)]
    tables += [_wiring_table(rows)] if any(map(board_rows.used_wirings, rows)) else []
    tables += [Text(f"{row.preset}: {line}") for row in rows for line in board_rows.findings(row)]
    tables += [Text(f"{row.preset}: {words}") for row in rows if (words := predicted_times(row))]
    tables += [Text(f"{row.preset}: {pipeline_words(row.pipeline)}") for row in rows if row.pipeline]
    tables += [Text(line) for line in (*board_rows.problems(rows), *board_rows.no_estimates(rows))]
    left_out = [row.preset for row in rows if row.estimate and not row.compiled and is_far_too_large(row.estimate)]
    compiled = any(row.compiled for row in rows)
    if left_out and compiled:
        tables.append(Text(f"far too large by formula, so not compiled: {', '.join(left_out)}", "dim"))
    accounts = [(row.preset, row.compiled.account) for row in rows if row.compiled and row.compiled.account]
    tables += [table for name, account in accounts for table in profile_tables(name, account, console.width)]
    tables += _peak_tables(rows) if shows_memory else []
    tables += [table for row in rows for table in fit_tables(row)]
    tables += [Text(NOT_TUNED, "dim")] if load_topology(board.topology).chip.target and compiled else []
    return [*tables, Text(f"→ {recommendation(board.rows, load_topology(board.topology).title)}", "bold")]


def _peak_tables(rows: Sequence[Row]) -> list[Table]:
    costs = [(row.preset, row.compiled) for row in rows if row.compiled]
    return [peak_table(name, at, cost.peak_buffers, cost.peak_bytes) for name, cost in costs if (at := cost.at_peak)]


def _title(board: Board, config: RunConfig) -> str:
    slice_ = load_topology(board.topology)
    memory = figures.size(slice_.chip.memory)
    return f"{board.model} on {slice_.title}: {slice_.devices:,} × {memory}, {config.batch} per step"


def _lines(cells: str | list[str]) -> str:
    return "\n".join(cells.split(", ") if isinstance(cells, str) else cells)


CELLS: dict[str, Callable[[Row], str]] = {
    "preset": lambda row: row.preset,
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
            table.add_row(*(Text(cell) for cell in ("" if index else row.preset, *cells)))
    return table
