"""`shardtui plan`: presets on a slice that nobody has to hold, by formula and by the TPU compiler, best first."""

import asyncio
import sys
import time
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from ..engine import figures, tpu_compiler
from ..engine.board import Board, Row, ranked, recommendation
from ..engine.config import RunConfig
from ..engine.topology import load_topology
from . import board_rows
from .clean import clean, json_line, printable, warn
from .plain_console import plain_console
from .plan_report import plan_report
from .planner import NoAnswer, Planner, is_hopeless

PIPE_WIDTH = 140
"""Columns of a table that does not go to a terminal."""
FINE, FAILED, INTERRUPTED = 0, 1, 130


def plan(config: RunConfig, topology: str, presets: Sequence[str], compiles: bool, as_json: bool) -> int:
    """Answers with what is known, also where Ctrl-C ends it early. Raises Invalid."""
    planner = Planner(config, topology, presets, compiles)
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
    console = plain_console()
    if not console.is_terminal:
        console = plain_console(width=PIPE_WIDTH)
    console.print(*_tables(clean(board), config), sep="\n")


def _tables(board: Board, config: RunConfig) -> list[RenderableType]:
    rows = ranked(board.rows)
    tables: list[RenderableType] = [_board_table(rows, _title(board, config))]
    tables += [_wiring_table(rows)] if any(map(board_rows.wires, rows)) else []
    tables += [Text(line) for line in board_rows.problems(rows)]
    left_out = [row.preset for row in rows if row.estimate and not row.compiled and is_hopeless(row.estimate)]
    if left_out and any(row.compiled for row in rows):
        tables.append(Text(f"far too large by formula and not compiled: {', '.join(left_out)}", "dim"))
    return [*tables, Text(f"→ {recommendation(board.rows, board.topology)}", "bold")]


def _title(board: Board, config: RunConfig) -> str:
    batch, seq = config.training.batch_size, config.training.seq_len
    slice_ = load_topology(board.topology)
    memory = figures.size(slice_.chip.memory)
    return f"{board.model} on {board.topology}: {slice_.devices:,} × {memory}, {batch:,} × {seq:,} tokens a step"


def _board_table(rows: Sequence[Row], title: str) -> Table:
    table = _table(
        "preset",
        "verdict",
        _right("peak"),
        Column("sent a step", no_wrap=True),
        _right("a step"),
        _right("tokens/s"),
        _right("FLOP util"),
        "bound by",
        "from",
        Column("estimate off by", no_wrap=True),
        title=title,
    )
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    return [
        row.preset,
        board_rows.verdict(row),
        board_rows.held(row),
        "\n".join(board_rows.most_sent(row)),
        board_rows.step_time(row),
        board_rows.tokens_rate(row),
        board_rows.utilisation(row),
        board_rows.bound(row),
        board_rows.source(row),
        board_rows.off_by(row).replace(", ", "\n"),
    ]


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
    return Table(*columns, title=title, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")


def _right(name: str) -> Column:
    return Column(name, justify="right")
