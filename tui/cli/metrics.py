"""`shardtui metrics`: the curves of a run for other tools, as far as it is recorded or until it ends."""

import argparse
import signal
from contextlib import suppress
from functools import partial
from typing import get_args

from ...engine.base import formatting
from ...engine.base.output import note, say, show
from ...engine.base.processes import is_running
from ...engine.base.user_error import UserError, refuse
from ...engine.spec.config import Destination, DestinationKind
from ...engine.wire import run_directory
from ...engine.wire.run_directory import RunDirectory
from ..metrics.follower import Feed, follow
from ..terminal import FAILED, FINE
from .destinations import destination, problems_of_destinations
from .options import add_run_argument


def metrics_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run_argument(parser)
    add("--csv", metavar="FILE", help="a file with a row for each step and a column for each scalar")
    add("--tensorboard", metavar="DIR", help="event files in DIR/RUN, for `tensorboard --logdir DIR`")
    add(
        "--wandb", metavar="PROJECT", help="a run of Weights & Biases in this project; WANDB_MODE=offline sends nothing"
    )
    add("--follow", action="store_true", help="go on until the run ends, also over restarts by its supervisor")
    add("--engine", type=int, default=0, help=argparse.SUPPRESS)  # the process that will train, or starts those that do


def metrics_command(options: argparse.Namespace) -> int:
    directory = run_directory.find(options.run)
    feeds = [Feed(each, directory) for each in _destinations(options, directory)]
    if options.follow:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was read is written first
    is_live = partial(_is_live, directory, options.engine)
    done = follow(feeds, is_live if options.follow else lambda: False)
    if lines := max(feed.unreadable_lines for feed in feeds):
        say(f"{directory.events}: left out {formatting.counted(lines, 'unreadable line')}")
    written = [summary for feed in done if (summary := feed.summary)]
    if done and not written and not options.engine:
        raise UserError(f"run {directory.name}: it has recorded no step yet: nothing was written")
    show(*written)
    if not options.follow and is_live():
        note(f"run {directory.name} goes on: with --follow, its next steps are written, too")
    return FINE if len(done) == len(feeds) else FAILED


def _destinations(options: argparse.Namespace, directory: RunDirectory) -> list[Destination]:
    """Raises UserError if there is none, or with everything by which one is known to be unusable."""
    given = {kind: place for kind in get_args(DestinationKind) if (place := getattr(options, kind))}
    if not given:
        raise UserError("metrics: no destination: add --csv FILE, --tensorboard DIR or --wandb PROJECT")
    found = [destination(kind, place) for kind, place in given.items()]
    refuse(problems_of_destinations(directory, found))
    return found


def _is_live(directory: RunDirectory, engine: int) -> bool:
    """Whether the run may still record steps. `engine`: a process that may not have taken its lock yet."""
    is_alive = False
    with suppress(UserError):
        is_alive = directory.is_alive
    return directory.is_supervised or is_alive or is_running(engine)
