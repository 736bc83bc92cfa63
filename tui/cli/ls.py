"""`shardtui ls`: the runs, as a table or JSON."""

import argparse

from ...engine.base.output import say, show
from ...engine.wire.run_directory import state_home
from ..state.run_listing import COLUMNS, listed
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import table_console, table_of
from .options import add_json_option


def ls_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def ls_command(options: argparse.Namespace) -> int:
    listing = listed()
    say(*listing.problems)
    runs = listing.runs
    if options.json:
        show(json_line(listing))
    elif not runs:
        show(f"no runs in {state_home()}: start one with `shardtui`")
    else:
        table_console().print(table_of(COLUMNS, map(clean, runs)))
    return FINE
