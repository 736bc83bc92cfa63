"""`shardtui plan`: ranks presets on a TPU slice you need not have, by its traced steps and by the compiler."""

import asyncio
import contextlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...engine.base import formatting
from ...engine.base.output import note, say, show
from ...engine.base.user_error import refuse
from ...engine.planning import compilers
from ...engine.planning.finalists import is_far_too_large
from ...engine.planning.goal import SearchRequest, figure, pick, ranked
from ...engine.planning.ranking import Board, Row, settings_of
from ...engine.spec.config import RunConfig, UserModel
from ...engine.spec.preset import BUILT_IN, reference
from ...engine.spec.preset_reader import load_preset
from ...engine.spec.preset_writer import preset_text, write_preset
from ...engine.spec.topology import Topology, load_topology
from ...engine.wire import run_directory
from ..client.engine_process import NoAnswer
from ..client.planner import Compiling, Planner
from ..state import board_rows
from ..state.recommendation import figure_words, recommendation
from ..state.step_words import pipeline_words
from ..terminal import FAILED, FINE, INTERRUPTED
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import UNLIMITED, plain_console, plain_table, right, table_console, table_of
from .plan_report import (
    ChosenPreset,
    Prices,
    SearchReport,
    check_prices,
    curve_table,
    plan_report,
    search_lines,
    search_report,
    shown,
    topologies_table,
)
from .profile_report import peak_tables, profile_tables
from .run_config import set_words

NOT_TUNED = (
    "compiled for a description of the GPU, with plain attention and nothing autotuned: on a real one memory may "
    "differ, and steps take longer than these bounds"
)


@dataclass(frozen=True)
class Asked:
    compiles: bool
    search: SearchRequest | None
    place: Path | None
    """Where the preset that a search chose is written; None for a place of its own."""
    train: Sequence[str]
    """The words of the command that trains, without a preset."""
    breakdowns: bool
    memory: bool
    prices: Prices
    as_json: bool


def plan(config: RunConfig, topologies: Sequence[str], presets: Sequence[str], asked: Asked) -> int:
    """Prints the ranked presets and returns the exit code; Ctrl-C prints what is known so far. Raises UserError."""
    refuse(_problems(config, asked))
    found = list(map(load_topology, topologies))
    check_prices(asked.prices, found)
    say(*(f"estimates only: {why}" for why in dict.fromkeys(map(compilers.missing, found)) if why and asked.compiles))
    boards, searches, code = list[Board](), list[SearchReport](), FINE
    for number, topology in enumerate(topologies):
        planner = Planner(config, topology, presets, asked.compiles, breakdowns=asked.breakdowns, search=asked.search)
        say(*(() if number else planner.preset_problems))
        try:
            asyncio.run(_follow(planner))
        except KeyboardInterrupt:
            code = INTERRUPTED
        except NoAnswer as error:
            say(*error.problems)
            return FAILED
        if planner.board:
            boards.append(planner.board)
            searches += [search_report(planner, bool(code), _chosen(planner, asked))] if asked.search else []
        if code:
            break
    if boards:
        _answer(boards, searches, config, asked)
    return code or (FAILED if any(search.chosen is None for search in searches) else FINE)


def _chosen(planner: Planner, asked: Asked) -> ChosenPreset | None:
    """Writes the preset that a search chose, and returns it; None if none fits. Raises UserError."""
    board, search = planner.board, asked.search
    assert board is not None and search is not None
    best = pick(board.rows, search.goal)
    if best is None:
        return None
    topology, preset = load_topology(board.topology), load_preset(planner.subject(best.title)[2])
    place = asked.place or _place(board.model, topology)
    found, cost = figure(best, search.goal), best.cost
    assert found is not None and cost is not None
    chosen = "--preset", reference(place.stem, str(place)), *set_words(settings_of(best.settings))
    command = shlex.join([*asked.train, *chosen, "--steps", "1000"])
    written = replace(
        preset,
        mesh=preset.sizes(topology.devices),
        source=BUILT_IN,
        summary=f"{best.preset}, chosen by `shardtui plan` for {topology.title}",
        teaches=f"Train with it: {command}",
    )
    write_preset(place, preset_text(written))
    return ChosenPreset(
        preset=best.preset, settings=best.settings, figure=found, basis=cost.basis, file=str(place), command=command
    )


def _place(model: str, topology: Topology) -> Path:
    name = f"{model}-{topology.slices}-{topology.name}" if topology.slices > 1 else f"{model}-{topology.name}"
    return run_directory.chosen_presets() / f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-.')[:64]}.toml"


def _problems(config: RunConfig, asked: Asked) -> list[str]:
    is_traced = asked.search is None or isinstance(config.model, UserModel)
    needs = {
        "--profile": (asked.breakdowns, "the compiler's schedule"),
        "--memory": (asked.memory and not is_traced, "the compiler's schedule if it searches"),
        "--fit": (asked.search is not None and asked.search.is_mesh_fixed, "the compiler"),
    }
    found = {} if asked.compiles else needs
    return [f"{option} needs {what}: leave out --estimate" for option, (is_asked, what) in found.items() if is_asked]


def _answer(boards: Sequence[Board], searches: Sequence[SearchReport], config: RunConfig, asked: Asked) -> None:
    report = plan_report(*boards, prices=asked.prices, searches=searches)
    if asked.as_json:
        show(json_line(report))
        return
    console = table_console()
    for number, board in enumerate(map(clean, boards)):
        search = clean(searches[number]) if searches else None
        console.print(*_tables(board, config, console, asked.memory, search), sep="\n")
        console.print(
            *(search_lines(search) if search else []), sep="\n", soft_wrap=True, markup=False, highlight=False
        )
    if len(boards) > 1 or asked.prices:
        console.print(topologies_table(clean(report).rows, asked.prices))


def _tables(
    board: Board, config: RunConfig, console: Console, shows_memory: bool, search: SearchReport | None
) -> list[RenderableType]:
    goal = search.goal if search else None
    rows = ranked(board.rows, goal)
    rows = shown(rows) if search else rows
    tables: list[RenderableType] = [*board_tables(rows, _title(board, config, bool(search)), console)]
    best = rows[:1] if search else rows
    tables += [_wiring_table(best)] if any(map(board_rows.used_wirings, best)) else []
    tables += [Text(f"{row.title}: {line}") for row in rows for line in board_rows.findings(row)]
    tables += [Text(f"{row.title}: {words}") for row in rows if (words := board_rows.scheduled(row))]
    tables += [Text(f"{row.title}: {pipeline_words(row.pipeline)}") for row in rows if row.pipeline]
    tables += [Text(line) for line in (*board_rows.problems(rows), *board_rows.all_caveats(rows))]
    left_out = [row for row in rows if row.estimate and not row.compiled and is_far_too_large(row.estimate)]
    compiled = any(row.compiled for row in rows)
    if left_out and compiled:
        titles = ", ".join(row.title for row in left_out)
        tables.append(Text(f"far too large (traced), so not compiled: {titles}", "dim"))
    breakdowns = [(row.title, row.compiled.breakdown) for row in rows if row.compiled and row.compiled.breakdown]
    tables += [table for name, breakdown in breakdowns for table in profile_tables(name, breakdown, console.width)]
    tables += peak_tables(best) if shows_memory else []
    tables += [Text(NOT_TUNED, "dim")] if load_topology(board.topology).chip.target and compiled else []
    tables += [curve_table(search)] if search and search.curve else []
    return [*tables, Text(f"→ {recommendation(board.rows, load_topology(board.topology).title, goal)}", "bold")]


def _title(board: Board, config: RunConfig, is_searched: bool) -> str:
    slice_ = load_topology(board.topology)
    title = f"{board.model} on {slice_.title}: {slice_.devices:,} × {formatting.size(slice_.chip.memory)}"
    return title if is_searched else f"{title}, {config.batch} per step"


NARROW_TABLES = (
    ("preset", "verdict", "peak", "step time", "bound"),
    ("preset", "tokens/s", "examples/s", "MFU", "sent/step", "from", "est. error"),
)


def board_tables(rows: Sequence[Row], title: str, console: Console) -> list[Table]:
    columns = board_rows.columns(counted=board_rows.counted_in(rows))
    single = table_of(columns, rows, title=title)
    if console.measure(single, options=console.options.update(width=UNLIMITED)).maximum <= console.width:
        return [single]
    parts = [[column for column in columns if column.name in names] for names in NARROW_TABLES]
    return [table_of(part, rows, title="" if index else title) for index, part in enumerate(parts)]


def _wiring_table(rows: Sequence[Row]) -> Table:
    table = plain_table(
        "preset", "axis", right("devices"), "runs on", right("bandwidth"), title="links of each mesh axis"
    )
    for row in rows:
        for index, wired in enumerate(board_rows.used_wirings(row)):
            cells = (formatting.over(wired.axes), str(wired.size), board_rows.links(wired), board_rows.rate(wired))
            table.add_row(*(Text(cell) for cell in ("" if index else row.title, *cells)))
    return table


async def _follow(planner: Planner) -> None:
    """Prints what is being compiled, and the outcomes; on a terminal also a line with the time left."""
    before: list[Compiling] = []
    with _live_line(planner) if sys.stderr.isatty() else contextlib.nullcontext():
        async for board in planner.boards():
            for ended in (each for each in before if each not in planner.running):
                note(_outcome(board, ended.preset, time.monotonic() - ended.began))
            for now in (each for each in planner.running if each not in before):
                note(f"compiling {now.preset}, {now.number} of {now.count}")
            before = planner.running


def _live_line(planner: Planner) -> Live:
    return Live(
        get_renderable=lambda: Text(progress(planner), no_wrap=True),
        console=plain_console(stderr=True),
        refresh_per_second=1,
        transient=True,
        redirect_stdout=False,
    )


def progress(planner: Planner) -> str:
    """Returns what is being done and for how long, of a search the best so far, and the time left."""
    now, left, search = time.monotonic(), planner.seconds_left, planner.search
    doing = "waiting for other plans to compile" if planner.is_waiting else "compiling"
    parts = [f"{doing} for {now - planner.compiling.began:.0f} s" if planner.compiling else "estimating"]
    rows = [row for row in planner.board.rows if row.compiled] if planner.board else []
    if search and (best := pick(rows, search.goal)) and (value := figure(best, search.goal)):
        parts.append(f"best {figure_words(value, search.goal)}")
    if left is None:
        parts.append(f"{formatting.seconds(now - planner.began)} in all")
    else:
        parts.append(f"{'at most' if search else 'about'} {formatting.seconds(left)} left")
    return ", ".join(parts)


def _outcome(board: Board, title: str, seconds: float) -> str:
    row = next(row for row in board.rows if row.title == title)
    outcome = board_rows.verdict(row) if row.compiled else " ".join(row.problems)
    return f"  {outcome}, after {formatting.seconds(seconds)}"
