"""`shardtui runs`: the runs of this host and of others, as they are now; one of them is opened, and left, in the UI."""

import argparse
import asyncio

import msgspec

from ...engine.base.directories import config_directory
from ...engine.base.user_error import UserError
from ...engine.spec.preset_files import read_toml
from ...engine.wire.run_directory import checked_name
from ..client.remote_client import RemoteClient
from ..runs_app import RunsApp
from ..state.run_listing import Origin
from ..terminal import FINE
from .run import add_program_option, attachable, checked_host, require_terminal, run_app, show, user_keymap

FILE = "hosts.toml"


def runs_options(parser: argparse.ArgumentParser) -> None:
    help_ = f"a host as ssh takes it; default: `hosts` in {FILE}, next to keys.toml"
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=help_)
    parser.add_argument(
        "--notify",
        default="",
        metavar="C",
        help="a command for your shell, with the run as JSON on its stdin, whenever one gets into trouble",
    )
    add_program_option(parser)


def runs_command(options: argparse.Namespace) -> int:
    require_terminal("shardtui ls")
    keymap, hosts = user_keymap(), [checked_host(host) for host in options.hosts or configured_hosts()]
    chosen, problem = None, ""
    while True:
        app = RunsApp([*map(Origin, ["", *hosts])], options.program, keymap, options.notify, chosen, problem)
        if not (chosen := asyncio.run(run_app(app))):
            return FINE
        host, run = chosen
        try:
            show(RemoteClient(host, checked_name(run), options.program) if host else attachable(run), keymap)
            problem = ""
        except UserError as error:
            problem = "; ".join(error.problems)


def configured_hosts() -> list[str]:
    """Returns the hosts in the user's file. Raises UserError if it has anything else."""
    path = config_directory() / FILE
    if not path.exists():
        return []
    try:
        return msgspec.convert(read_toml(path), dict[str, list[str]]).get("hosts", [])
    except msgspec.ValidationError as error:
        raise UserError(f'{path}: {error}: write hosts = ["tpu-vm-1", "tpu-vm-2"]') from error
