"""`shardtui runs`, `ls`, `rm` and `rename`: the runs of this host and of others, as they are now."""

import argparse
import asyncio

import msgspec

from ...engine.base import formatting
from ...engine.base.directories import config_directory
from ...engine.base.output import say, show
from ...engine.base.user_error import UserError, noting, together
from ...engine.spec.preset_files import read_toml
from ...engine.wire import run_directory
from ..state.run_listing import COLUMNS, Origin, delete, listed
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import table_console, table_of
from .options import add_json_option, add_program_option

FILE = "hosts.toml"


class Hosts(msgspec.Struct, forbid_unknown_fields=True):
    """What the user's file has."""

    hosts: list[str] = []


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
    """Shows the runs until one is chosen, and that one in the UI until it is left; again and again."""
    from ..client.remote_client import RemoteClient
    from ..runs_app import RunsApp
    from . import run as ui  # the other commands start without these

    ui.require_terminal("shardtui ls")
    keymap, hosts = ui.user_keymap(), [ui.checked_host(host) for host in options.hosts or configured_hosts()]
    origins, chosen, problem = [*map(Origin, ["", *hosts])], None, ""
    while True:
        app = RunsApp(origins, options.program, keymap, options.notify, chosen, problem)
        if not (chosen := asyncio.run(ui.run_app(app))):
            return FINE
        host, run = chosen
        try:
            client = (
                RemoteClient(host, run_directory.checked_name(run), options.program) if host else ui.attachable(run)
            )
            ui.show(client, keymap)
            problem = ""
        except UserError as error:
            problem = "; ".join(error.problems)


def configured_hosts() -> list[str]:
    """Returns the hosts in the user's file. Raises UserError if it has anything else."""
    path = config_directory() / FILE
    if not path.exists():
        return []
    try:
        return msgspec.convert(read_toml(path), Hosts).hosts
    except msgspec.ValidationError as error:
        raise UserError(f'{path}: {error}: write hosts = ["tpu-vm-1", "tpu-vm-2"]') from error


def ls_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def ls_command(options: argparse.Namespace) -> int:
    listing = listed()
    say(*listing.problems)
    runs = listing.runs
    if options.json:
        show(json_line(listing))
    elif not runs:
        show(f"no runs in {run_directory.state_home()}: start one with `shardtui`")
    else:
        table_console().print(table_of(COLUMNS, map(clean, runs)))
    return FINE


def rm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="name of a run that has ended; see `shardtui ls`")


def rm_command(options: argparse.Namespace) -> int:
    """Deletes runs with their checkpoints, those in a --checkpoint-dir aside. Raises UserError, after the others are
    deleted, for a run that trains or cannot be found."""
    problems: list[str] = []
    with together(problems):
        for name in dict.fromkeys(options.runs):
            with noting(problems):
                size = delete(run_directory.find(name))
                show(f"deleted run {name}: {formatting.size(size)}")
    return FINE


def rename_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="name of a run that has ended; see `shardtui ls`")
    parser.add_argument("name", metavar="NAME", help="its new name")


def rename_command(options: argparse.Namespace) -> int:
    """Raises UserError for a run that trains or cannot be found, and for a name that is taken or not valid."""
    run_directory.find(options.run).rename(options.name)
    show(f"renamed run {options.run} to {options.name}")
    return FINE
