"""`shardtui numbers`: the numbers inside the arrays of a run, as last measured."""

import argparse
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType

from ...engine.base import formatting
from ...engine.base.output import printable, show
from ...engine.base.user_error import UserError, suggestion
from ...engine.wire import run_directory
from ...engine.wire.event_log import LogReader
from ...engine.wire.number_events import UPDATE, NumbersMeasured
from ...engine.wire.run_directory import RunDirectory
from ..state.experts import LOADS, expert_axes, layer_loads, part_words
from ..state.interpreter import apply_all
from ..state.number_tables import LAYERS, SHARDS, layer_rows, numbers_columns
from ..state.numbers import Numbers, NumbersRow, rows_of
from ..state.run_state import RunState
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import table_console, table_of
from .options import add_json_option, add_run_argument

MAX_STEPS = 8
"""Steps named in an error."""


class NumbersReport(Struct, frozen=True, kw_only=True):
    """Measurements of the numbers inside the arrays of a run."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    run: str
    """Name of the run."""
    measurements: list[NumbersMeasured]
    """Oldest first; of a step that was measured more than once, each."""


def numbers_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run_argument(parser)
    add("--array", metavar="NAME", help="its layers, a row each, and the shards that stand out")
    add("--step", type=int, metavar="N", help="the measurement of this step; default: the newest")
    add_json_option(parser)


def numbers_command(options: argparse.Namespace) -> int:
    """Prints the newest measurement, or that of a step; all of them as JSON. Raises UserError if there is none."""
    directory, name = run_directory.find(options.run), options.array
    state = RunState()
    measured = _measured(directory, state)
    last = _chosen(measured, options.step, directory.name)
    if name is not None:
        refuse_unknown(name, measured[last], directory.name)
        measured = [of_array(name, event) for event in measured]
    if options.json:
        shown = [event for event in measured if options.step in (None, event.step)]
        show(json_line(NumbersReport(run=directory.name, measurements=shown)))
        return FINE
    numbers = Numbers()
    for event in measured[: last + 1]:
        numbers.add(clean(event))
    console = table_console()
    console.print(*numbers_tables(directory.name, numbers, state, name, console.width), sep="\n")
    return FINE


def _measured(directory: RunDirectory, state: RunState) -> list[NumbersMeasured]:
    """Returns all measurements of a run, whose history is applied to `state`. Raises UserError if there are none."""
    found: list[NumbersMeasured] = []
    with suppress(FileNotFoundError):  # it has just begun
        for events in LogReader(directory.events).read():
            apply_all(state, events)
            found += [event for event in events if isinstance(event, NumbersMeasured) and not event.problem]
    if found:
        return found
    if watched := directory.watched:
        raise UserError(f"run {directory.name} has no numbers: {watched.refusal}")
    if problem := state.numbers.problem:
        raise UserError(f"run {directory.name} has no numbers: {printable(problem)}")
    way = (
        f"press M in Arrays of `shardtui attach {directory.name}`, or train with --numbers-every 100"
        if directory.is_alive
        else f"`shardtui train --resume {directory.name} --numbers-every 100` trains on and measures"
    )
    raise UserError(f"run {directory.name} has no numbers: none were measured: {way}")


def _chosen(measured: Sequence[NumbersMeasured], step: int | None, run: str) -> int:
    """Returns the index of the newest measurement, of a step if one is given. Raises UserError."""
    if step is None:
        return len(measured) - 1
    found = [at for at, event in enumerate(measured) if event.step == step]
    if not found:
        steps = list(dict.fromkeys(f"{event.step:,}" for event in reversed(measured)))
        known = formatting.listed(steps, MAX_STEPS)
        raise UserError(f"--step {step}: run {run} has numbers of steps {known}: choose one of them")
    return found[-1]


def refuse_unknown(name: str, event: NumbersMeasured, run: str) -> None:
    """Raises UserError if there is no array of that name."""
    names = [array.name for array in event.arrays]
    if name not in names:
        maybe = suggestion(name, names)
        among = f"no such array among the {len(names)} of step {event.step:,}"
        raise UserError(f"--array {name}: {among}: {maybe}see `shardtui numbers {run}`")


def of_array(name: str, event: NumbersMeasured) -> NumbersMeasured:
    """Returns the numbers of an array, and of its updates."""
    return replace(event, arrays=[each for each in event.arrays if each.name in (name, UPDATE + name)], experts=None)


def numbers_tables(run: str, numbers: Numbers, state: RunState, name: str | None, width: int) -> list[RenderableType]:
    """Returns the numbers measured last as tables for a console of this width. `name`: of the one array to show."""
    event, rows = numbers.newest, rows_of(numbers)
    assert event, "a run without any is refused"
    title = f"{run}, step {event.step:,}, under {event.preset}"
    if name is not None:
        return array_tables(next((row for row in rows if row.array.name == name), NumbersRow(event.arrays[0])), title)
    columns = numbers_columns()
    measured = f"{formatting.counted(len(rows), 'array')}, measured in {formatting.seconds(event.seconds)}"
    tables: list[RenderableType] = [table_of(columns, rows, width, title=f"{title}: {measured}")]
    if experts := event.experts:
        words = part_words(experts, expert_axes(state.arrays_of(event.preset)))
        tables.append(
            table_of(LOADS, layer_loads(experts), title="experts: tokens compared with a fair share", caption=words)
        )
    return tables


def array_tables(row: NumbersRow, title: str) -> list[RenderableType]:
    array = row.array
    tables: list[RenderableType] = [table_of(LAYERS, layer_rows(row), title=f"{title}: {array.name}, {array.kind}")]
    if array.shards:
        tables.append(table_of(SHARDS, array.shards, title="shards that stand out"))
    return tables
