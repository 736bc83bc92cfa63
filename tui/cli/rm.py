"""`shardtui rm`: deletes ended runs."""

import argparse

from ...engine.base import formatting
from ...engine.base.output import show
from ...engine.base.user_error import UserError, together
from ...engine.wire import run_directory
from ..terminal import FINE


def rm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="name of a run that has ended; see `shardtui ls`")


def rm_command(options: argparse.Namespace) -> int:
    """Deletes runs with their checkpoints, those in a --checkpoint-dir aside. Raises UserError, after the others are
    deleted, for a run that trains or cannot be found."""
    problems: list[str] = []
    with together(problems):
        for name in dict.fromkeys(options.runs):
            try:
                directory = run_directory.find(name)
                with directory.hold_ended():
                    size = directory.bytes
                    directory.discard()
            except UserError as error:
                problems += error.problems
            except OSError as error:
                problems.append(f"run {name}: {error.filename}: cannot be deleted: {error.strerror}")
            else:
                show(f"deleted run {name}: {formatting.size(size)}")
    return FINE
