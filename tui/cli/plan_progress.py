"""What `shardtui plan` prints on stderr while it works."""

import asyncio
import contextlib
import sys
import time

from ...engine.base import figures
from ...engine.planning.goal import figure, pick
from ...engine.planning.ranking import Board
from ..client.planner import Compiling, Planner
from ..state import board_rows
from ..state.search_words import figure_words
from ..terminal.clean import printable

CLEAR = "\r\x1b[K"
"""Returns to the beginning of the line and clears it."""


async def follow(planner: Planner) -> None:
    """Prints what is being compiled, and the outcomes; on a terminal also a line with the time left."""
    ticking = asyncio.create_task(_tick(planner)) if sys.stderr.isatty() else None
    before: list[Compiling] = []
    try:
        async for board in planner.boards():
            for ended in (each for each in before if each not in planner.running):
                _print_line(_outcome(board, ended.preset, time.monotonic() - ended.began))
            for now in (each for each in planner.running if each not in before):
                _print_line(f"compiling {now.preset}, {now.number} of {now.count}")
            before = planner.running
    finally:
        if ticking:
            ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticking
            print(CLEAR, end="", file=sys.stderr, flush=True)


async def _tick(planner: Planner) -> None:
    """Draws the last line again every second."""
    while True:
        print(f"{CLEAR}{printable(progress(planner))[:79]}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def progress(planner: Planner) -> str:
    """Returns what is being done and for how long, of a search the best so far, and the time left."""
    now, left, search = time.monotonic(), planner.seconds_left, planner.search
    doing = "waiting for other plans to compile" if planner.is_waiting else "compiling"
    parts = [f"{doing} for {now - planner.compiling.began:.0f} s" if planner.compiling else "estimating"]
    rows = [row for row in planner.board.rows if row.compiled] if planner.board else []
    if search and (best := pick(rows, search.goal)) and (value := figure(best, search.goal)):
        parts.append(f"best {figure_words(value, search.goal)}")
    if left is None:
        parts.append(f"{figures.seconds(now - planner.began)} in all")
    else:
        parts.append(f"{'at most' if search else 'about'} {figures.seconds(left)} left")
    return ", ".join(parts)


def _outcome(board: Board, title: str, seconds: float) -> str:
    row = next(row for row in board.rows if row.title == title)
    outcome = board_rows.verdict(row) if row.compiled else " ".join(row.problems)
    return f"  {outcome}, after {figures.seconds(seconds)}"


def _print_line(text: str) -> None:
    print(f"{CLEAR if sys.stderr.isatty() else ''}{printable(text)}", file=sys.stderr)
