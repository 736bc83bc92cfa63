"""`shardtui run`, `attach`, `tour` and `replay`: the UI on a new, resumed, live, ended or recorded run."""

import argparse
import asyncio
import contextlib
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...engine.base.directories import config_directory
from ...engine.base.output import note
from ...engine.base.user_error import UserError, suggestion
from ...engine.spec.attempt import Supervision
from ...engine.spec.config import Restart
from ...engine.spec.model_choice import choose_model
from ...engine.wire import run_directory
from ...engine.wire.event_log import LogReader
from ...engine.wire.run_directory import RunDirectory
from ..terminal import FINE
from . import run_file
from .options import add_local_options, add_program_option, add_training_options
from .run_config import new_config, resumed, supervision
from .values import number

if TYPE_CHECKING:
    from textual.app import App

    from ..client.engine_client import EngineClient
    from ..state.tour import Tour


T = TypeVar("T")


def run_options(parser: argparse.ArgumentParser) -> None:
    run_file.add_file_options(parser)
    add_training_options(parser)
    add_local_options(parser)


def run_command(options: argparse.Namespace) -> int:
    require_terminal("shardtui train --steps N")
    keymap = user_keymap()
    if options.offers_runs and (runs := run_directory.all_runs()):
        run_directory.runtime_directory()
        from ..client.engine_client import EngineClient

        return show(EngineClient(runs[-1]), keymap, new_run=partial(_new_run, options))
    client, restart = client_for(options)
    return show(client, keymap, restart=restart)


def attach_options(parser: argparse.ArgumentParser) -> None:
    help_ = "name of the run; see `shardtui ls`; HOST:RUN for one on another host, through ssh"
    parser.add_argument("run", nargs="?", metavar="[HOST:]RUN", help=help_)
    add_program_option(parser)


def attach_command(options: argparse.Namespace) -> int:
    host, is_remote, run = (options.run or "").rpartition(":")
    if not is_remote:
        client = attachable(options.run)
        require_terminal(f"tail -f {client.directory.events}")
        return show(client, user_keymap())
    checked_host(host)
    require_terminal(f"ssh {host} {options.program} ls")
    from ..client.remote_client import RemoteClient

    run = run and run_directory.checked_name(run)
    return show(RemoteClient(host, run, options.program), user_keymap())


def checked_host(host: str) -> str:
    """Raises UserError if ssh would take it for an option."""
    if not host or host.startswith("-"):
        raise UserError(f"{host!r}: not a host: give it as ssh takes it, such as tpu-vm in tpu-vm:nano-1")
    return host


def attachable(name: str | None) -> "EngineClient":
    """Returns the client of a run, live or ended; None is the newest one that trains. Raises UserError."""
    directory = run_directory.find(name)
    if elsewhere := directory.elsewhere:
        raise UserError(f"run {directory.name}: {elsewhere}")
    if directory.is_supervised and not directory.events.exists():
        raise UserError(f"run {directory.name}: its engine has not started yet: attach again in some seconds")
    return client_of(directory)


def client_for(options: argparse.Namespace) -> "tuple[EngineClient, Restart]":
    """Returns the client of a new or resumed run, and how it restarts. Raises UserError."""
    run_directory.runtime_directory()  # an unusable one is refused before anything is created
    supervised = supervision(options)
    if options.resume:
        directory = run_directory.find(options.resume)
        return client_of(directory, supervised), resumed(directory, options)
    if options.from_step is not None or options.other_data:
        raise UserError("--from-step and --other-data apply to a resumed run: add --resume RUN")
    restart = Restart(profile=options.profile, profile_every=options.profile_every)
    return client_of(_new_run(options), supervised), restart


def _new_run(options: argparse.Namespace) -> RunDirectory:
    directory = run_directory.create(new_config(options))
    run_file.write(directory, options.run_file)
    return directory


def client_of(directory: RunDirectory, supervision: Supervision | None = None) -> "EngineClient":
    """Returns the client of a run. Raises UserError if its history cannot be read."""
    from ...engine.wire.event_log import last_seq
    from ..client.engine_client import EngineClient

    last_seq(directory.events)
    return EngineClient(directory, supervision)


def show(
    client: "EngineClient",
    keymap: dict[str, str],
    restart: Restart | None = None,
    new_run: Callable[[], RunDirectory] | None = None,
    tour: "Tour | None" = None,
) -> int:
    """Runs the UI, see `ShardtuiApp`, and returns its exit code."""
    from ..app import ShardtuiApp

    async def run() -> ShardtuiApp:
        await client.connect()
        app = ShardtuiApp(client, restart, keymap, new_run, tour)
        await run_app(app)
        await client.close()
        return app

    app = asyncio.run(run())
    with contextlib.suppress(OSError):  # the terminal may be gone
        for line in app.lifecycle.exit_lines():
            note(line)
    return app.return_code or FINE


def user_keymap() -> dict[str, str]:
    path = config_directory() / "keys.toml"
    if not path.exists():  # else every view is imported
        return {}
    from ..keymap import load_keymap

    return load_keymap(path)


async def run_app(app: "App[T]") -> T | None:
    from ..terminal.ending import Ending

    Ending(app.exit)
    return await app.run_async()


def has_terminal() -> bool:
    """Returns whether there is a terminal that the UI can control, and that shows its errors, too."""
    return sys.stderr.isatty() and not _terminal_problem()


def require_terminal(instead: str) -> None:
    """Raises UserError if there is no terminal that the UI can control. `instead`: the command to use without one."""
    if problem := _terminal_problem():
        raise UserError(f"{problem} use `{instead}`")


def _terminal_problem() -> str:
    """Returns what the UI lacks, to be followed by what to use instead; empty if it lacks nothing."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "the UI needs a terminal, but stdin or stdout is not one:"
    encoding = sys.stderr.encoding
    if "●".encode(encoding, "replace") == b"?":
        return f"the UI needs characters that {encoding} does not have: set LC_ALL=C.UTF-8, or"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "the UI needs a terminal that can move its cursor, but TERM is dumb or unset:"
    return ""


def tour_options(_: argparse.ArgumentParser) -> None:
    """`tour` has no options."""


def tour_command(_: argparse.Namespace) -> int:
    """Starts a run on simulated devices, also where there are others, and shows the lessons. Raises UserError."""
    from ..state.tour import Tour

    require_terminal("shardtui train --steps N")
    keymap = user_keymap()
    run_directory.runtime_directory()  # an unusable one is refused before anything is created
    model = choose_model("nano", ("seq_len=32",))  # steps take a fraction of a second on two cores
    config = model.config(run_directory.free_name("tour"), devices=8, platform="cpu")
    return show(client_of(run_directory.create(config)), keymap, restart=Restart(), tour=Tour())


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
    """Returns the events of a run, or of a file or a directory. Raises UserError if there are none."""
    path = Path(name)
    is_path = os.sep in name or path.suffix == ".jsonl"
    runs = [directory.name for directory in run_directory.all_runs()]
    if not is_path and (name in runs or not path.exists()):
        return run_directory.find(name).events
    if path.is_dir():
        return path / FILE
    if not path.exists():
        maybe = suggestion(path.name, runs)
        raise UserError(f"{path}: no such file: {maybe}name a run (see `shardtui ls`), its directory or its {FILE}")
    return path


def _require_events(path: Path) -> None:
    """Raises UserError if not a single event can be read."""
    reader = LogReader(path)
    try:
        if next(reader.read(), None):
            return
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file: the run has recorded nothing yet") from error
    lines = reader.unreadable_lines
    what = f"none of its {lines} lines is an event" if lines else "no event in it"
    raise UserError(f"{path}: {what}: name a run (see `shardtui ls`) or its {FILE}")
