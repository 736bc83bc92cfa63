"""`shardtui replay`: the UI over the recorded events of a run."""

import argparse
import math
import os
from pathlib import Path

from ...engine.base.invalid import Invalid, suggestion
from ...engine.wire import run_directory
from ...engine.wire.event_log import LogReader
from .options import number
from .run import require_terminal, show, user_keymap

FILE = "events.jsonl"


def replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="name of a run, its directory, or an events.jsonl")
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="N",
        help="how many times as fast as recorded; default 1; 0 plays everything at once. Keys: space pauses, [ and ] "
        "halve and double the speed",
    )


def replay_command(options: argparse.Namespace) -> int:
    from ..client.replay import Replay

    path = recording(options.run)
    _require_events(path)
    require_terminal(f"less {path}")
    return show(Replay(path, options.speed), user_keymap())


def _speed(text: str) -> float:
    value = number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed, such as 10; 0 plays everything at once")
    return value


def recording(name: str) -> Path:
    """Returns the events of a run, or of a file or a directory. Raises Invalid if there are none."""
    path = Path(name)
    is_path = os.sep in name or path.suffix == ".jsonl"
    runs = [directory.name for directory in run_directory.all_runs()]
    if not is_path and (name in runs or not path.exists()):
        return run_directory.find(name).events
    if path.is_dir():
        return path / FILE
    if not path.exists():
        maybe = suggestion(path.name, runs)
        raise Invalid(f"{path}: no such file: {maybe}name a run (see `shardtui ls`), its directory or its {FILE}")
    return path


def _require_events(path: Path) -> None:
    """Raises Invalid if not a single event can be read."""
    reader = LogReader(path)
    try:
        if next(reader.read(), None):
            return
    except FileNotFoundError as error:
        raise Invalid(f"{path}: no such file: the run has recorded nothing yet") from error
    lines = reader.unreadable_lines
    what = f"none of its {lines} lines is an event" if lines else "no event in it"
    raise Invalid(f"{path}: {what}: name a run (see `shardtui ls`) or its {FILE}")
