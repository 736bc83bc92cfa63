"""`shardtui rename`: gives an ended run another name."""

import argparse

from ...engine.base.output import show
from ...engine.wire import run_directory
from ..terminal import FINE


def rename_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="name of a run that has ended; see `shardtui ls`")
    parser.add_argument("name", metavar="NAME", help="its new name")


def rename_command(options: argparse.Namespace) -> int:
    """Raises UserError for a run that trains or cannot be found, and for a name that is taken or not valid."""
    run_directory.find(options.run).rename(options.name)
    show(f"renamed run {options.run} to {options.name}")
    return FINE
