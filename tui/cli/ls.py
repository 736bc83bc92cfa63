"""`shardtui ls`: the runs, as a table or JSON."""

import argparse
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from ...engine.base.output import say, show
from ...engine.base.user_error import UserError
from ...engine.wire.run_directory import all_runs, state_home
from ..state.goodput import Goodput, share_words
from ..state.run_summary import RUNS, RunSummary, recorded_goodput, summarise
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import Column, figure, table_console, table_of
from .options import add_json_option


class RunInfo(RunSummary, frozen=True, kw_only=True):
    """One run, live or ended, and its goodput."""

    goodput: Goodput
    """Where its wall time went."""


COLUMNS: Sequence[Column[RunInfo]] = (
    *RUNS,
    figure("goodput", lambda run: share_words(run.goodput)),
    Column("process", lambda run: str(run.pid or "–")),
)


class RunListing(Struct, frozen=True, kw_only=True):
    """All runs."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    runs: list[RunInfo]
    """The runs, oldest first."""


def ls_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def ls_command(options: argparse.Namespace) -> int:
    """Prints the runs; warns of those that cannot be read."""
    runs: list[RunInfo] = []
    for directory in all_runs():
        try:
            summary = summarise(directory)
            runs.append(RunInfo(**asdict(summary), goodput=recorded_goodput(summary)))
        except UserError as error:
            say(*error.problems)
    if options.json:
        show(json_line(RunListing(runs=runs)))
    elif not runs:
        show(f"no runs in {state_home()}: start one with `shardtui`")
    else:
        table_console().print(table_of(COLUMNS, map(clean, runs)))
    return FINE
