"""`shardtui plan`: presets on a slice that nobody has to hold, by formula and by the TPU compiler, best first."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.planning import tpu_compiler
from ...engine.planning.ranking import Board, Row, ranked, recommendation
from ...engine.spec.config import RunConfig
from ...engine.spec.topology import load_topology
from ..client.planner import NoAnswer, Planner, is_hopeless
from ..state import board_rows
from ..terminal.clean import clean, json_line, printable, warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED
from ..terminal.plain_console import table_console
from .plan_report import plan_report

UNBOUND = 10_000
"""Columns that hold any table."""


def plan(
    config: RunConfig, topology: str, presets: Sequence[str], compiles: bool, searches: bool, as_json: bool
) -> int:
    """Answers with what is known, also where Ctrl-C ends it early. Raises Invalid."""
    planner = Planner(config, topology, presets, compiles, searches)
    warn(*planner.unreadable)
    if compiles and not tpu_compiler.is_installed():
        warn(f"estimates only: {tpu_compiler.NO_COMPILER}")
    code = FINE
    try:
        asyncio.run(_follow(planner))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except NoAnswer as error:
        warn(*error.problems)
        return FAILED
    if planner.board is not None:
        _answer(planner.board, config, as_json)
    return code


async def _follow(planner: Planner) -> None:
    """Says on stderr what is being compiled, and what came of it."""
    before = None
    async for board in planner.boards():
        if before is not None and planner.compiling is None:
            _tell_outcome(board, before.preset, time.monotonic() - before.began)
        elif planner.compiling is not None:
            now = planner.compiling
            print(f"compiling {printable(now.preset)}, {now.number} of {now.count}", file=sys.stderr)
        before = planner.compiling


def _tell_outcome(board: Board, preset: str, seconds: float) -> None:
    row = next(row for row in board.rows if row.preset == preset)
    outcome = board_rows.verdict(row) if row.compiled else " ".join(row.problems)
    print(f"  {printable(outcome)}, after {figures.seconds(seconds)}", file=sys.stderr)


def _answer(board: Board, config: RunConfig, as_json: bool) -> None:
    if as_json:
        print(json_line(plan_report(board)))
        return
    console = table_console()
    console.print(*_tables(clean(board), config, console), sep="\n")


def _tables(board: Board, config: RunConfig, console: Console) -> list[RenderableType]:
    rows = ranked(board.rows)
    tables: list[RenderableType] = [*board_tables(rows, _title(board, config), console)]
    tables += [_wiring_table(rows)] if any(map(board_rows.wires, rows)) else []
    tables += [Text(f"{row.preset}: {row.pipeline.words}") for row in rows if row.pipeline]
    tables += [Text(line) for line in (*board_rows.problems(rows), *board_rows.no_estimates(rows))]
    left_out = [row.preset for row in rows if row.estimate and not row.compiled and is_hopeless(row.estimate)]
    if left_out and any(row.compiled for row in rows):
        tables.append(Text(f"far too large by formula and not compiled: {', '.join(left_out)}", "dim"))
    return [*tables, Text(f"→ {recommendation(board.rows, board.topology)}", "bold")]


def _title(board: Board, config: RunConfig) -> str:
    slice_ = load_topology(board.topology)
    memory = figures.size(slice_.chip.memory)
    return f"{board.model} on {board.topology}: {slice_.devices:,} × {memory}, {config.batch} a step"


def _lines(cells: str | list[str]) -> str:
    return "\n".join(cells.split(", ") if isinstance(cells, str) else cells)


CELLS: dict[str, Callable[[Row], str]] = {
    "preset": lambda row: row.preset,
    "verdict": board_rows.verdict,
    "peak": board_rows.held,
    "sent a step": lambda row: _lines(board_rows.most_sent(row)),
    "a step": board_rows.step_time,
    "tokens/s": board_rows.tokens_rate,
    "util": board_rows.utilisation,
    "bound": board_rows.bound,
    "from": board_rows.source,
    "estimate off": lambda row: _lines(board_rows.off_by(row)),
}
FIGURES = ("peak", "a step", "tokens/s", "util")
NARROW = (
    ("preset", "verdict", "peak", "a step", "bound"),
    ("preset", "tokens/s", "util", "sent a step", "from", "estimate off"),
)


def board_tables(rows: Sequence[Row], title: str, console: Console) -> list[Table]:
    """One where there is room, else two."""
    whole = _board_table(rows, tuple(CELLS), title)
    if console.measure(whole, options=console.options.update(width=UNBOUND)).maximum <= console.width:
        return [whole]
    return [_board_table(rows, names, "" if index else title) for index, names in enumerate(NARROW)]


def _board_table(rows: Sequence[Row], names: Sequence[str], title: str) -> Table:
    table = _table(
        *(_column(name) for name in names),
        title=title,
    )
    for row in rows:
        table.add_row(*(Text(CELLS[name](row)) for name in names))
    return table


def _column(name: str) -> Column:
    if name in FIGURES:
        return _right(name)
    if name == "preset":  # the name of a mesh may be long
        return Column(name, overflow="fold")
    return Column(name, no_wrap=name != "sent a step")


def _wiring_table(rows: Sequence[Row]) -> Table:
    table = _table(
        "preset", "axis", _right("devices"), "runs on", _right("sends at"), title="links under the mesh axes"
    )
    for row in rows:
        for index, wired in enumerate(board_rows.wires(row)):
            cells = (figures.over(wired.axes), str(wired.size), board_rows.run_on(wired), board_rows.rate(wired))
            table.add_row(*(Text(cell) for cell in ("" if index else row.preset, *cells)))
    return table


def _table(*columns: str | Column, title: str) -> Table:
    return Table(*columns, title=title or None, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")


def _right(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)
