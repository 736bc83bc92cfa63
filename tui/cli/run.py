"""`shardtui run` and `shardtui attach`: the UI, on a run that begins, goes on or has ended."""

import argparse
import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ...engine.base.invalid import Invalid
from ...engine.spec.config import Restart
from ...engine.wire import run_directory
from ...engine.wire.run_directory import RunDirectory
from ..terminal.clean import printable
from ..terminal.exit_codes import FINE
from .run_config import new_config, resumed

if TYPE_CHECKING:
    from ..app import ShardtuiApp
    from ..client.engine_client import EngineClient


def run(options: argparse.Namespace) -> int:
    _need_terminal("shardtui train --steps N")
    client, restart = client_for(options)
    return _show(client, starts=True, restart=restart)


def attach(options: argparse.Namespace) -> int:
    directory = run_directory.find(options.run)
    _need_terminal(f"tail -f {directory.events}")
    return _show(client_of(directory))


def client_for(options: argparse.Namespace) -> "tuple[EngineClient, Restart]":
    """Of a run that goes on or of a new one, and how."""
    run_directory.runtime_directory()  # refused before anything is made
    if options.resume:
        directory = run_directory.find(options.resume)
        return client_of(directory), resumed(directory, options)
    if options.from_step is not None or options.other_data:
        raise Invalid("--from-step and --other-data are of a run that goes on: add --resume RUN")
    return client_of(run_directory.create(new_config(options))), Restart(profile=options.profile)


def client_of(directory: RunDirectory) -> "EngineClient":
    """Raises Invalid where the run's history cannot be read."""
    from ...engine.wire.event_log import last_seq
    from ..client.engine_client import EngineClient

    last_seq(directory.events)
    return EngineClient(directory)


def _show(client: "EngineClient", starts: bool = False, restart: Restart | None = None) -> int:
    from ..app import ShardtuiApp

    app = ShardtuiApp(client, starts, restart)
    asyncio.run(_run_app(app))
    with contextlib.suppress(OSError):  # there may be no terminal any more
        for line in app.last_words():
            print(printable(line), file=sys.stderr)
    return app.return_code or FINE


async def _run_app(app: "ShardtuiApp") -> None:
    from ..terminal.ending import Ending

    Ending(app.exit)
    await app.run_async()


def _need_terminal(instead: str) -> None:
    """The UI draws on a terminal that it can control. Raises Invalid where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid(f"the UI needs a terminal, and stdin or stdout is none: use `{instead}`")
    encoding = sys.stderr.encoding
    if "●".encode(encoding, "replace") == b"?":
        raise Invalid(f"the UI draws with characters that {encoding} lacks: set LC_ALL=C.UTF-8, or use `{instead}`")
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise Invalid(f"the UI needs a terminal that can move its cursor, and TERM is dumb or unset: use `{instead}`")
