"""The `shardtui` command. Heavy imports wait until the command that needs them runs."""

import argparse
import asyncio
import io
import os
import sys

from ...engine.base.invalid import Invalid
from ...engine.spec.preset_reader import load_preset
from ...engine.wire import run_directory
from ..terminal.clean import warn
from ..terminal.exit_codes import FAILED, FINE, INTERRUPTED, REFUSED
from .arguments import Parser, Version
from .options import add_options
from .run import attach, client_for, run
from .run_config import compared, new_config, planned


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale cannot encode is no reason to fail
    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help", "--version"):
        arguments = ["run", *arguments]
    try:
        options = _parser(arguments[0]).parse_args(_text(arguments))
        return COMMANDS[options.command][0](options)
    except Invalid as error:
        warn(*error.problems)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout once more
        return FAILED


def _train(options: argparse.Namespace) -> int:
    from .train import train

    if options.steps is None and not options.resume:
        raise Invalid("train: --steps N is missing: how many steps to make")
    return asyncio.run(train(*client_for(options), options.json))


def _engine(options: argparse.Namespace) -> int:
    from .engine import become_engine

    return become_engine(options)


def _ls(options: argparse.Namespace) -> int:
    from .ls import list_runs

    list_runs(options.json)
    return FINE


def _stop(options: argparse.Namespace) -> int:
    from ..client.engine_client import EngineClient
    from .train import stop

    return asyncio.run(stop(EngineClient(run_directory.find(options.run))))


def _verify(options: argparse.Namespace) -> int:
    from .verify import verify

    return verify(run_directory.find(options.run), options.json)


def _presets(options: argparse.Namespace) -> int:
    from .ls import list_presets

    list_presets(new_config(options), options.json)
    return FINE


def _inspect(options: argparse.Namespace) -> int:
    from .inspect import inspect, inspect_hlo

    if options.hlo or options.mesh:
        if not (options.hlo and options.mesh):
            raise Invalid("--hlo FILE and --mesh data=4,model=2 go together: give both, or none")
        return inspect_hlo(options.hlo, options.mesh, options.json, options.svg)
    if options.diff:
        load_preset(options.diff)
    return inspect(new_config(options), options.json, options.svg, options.diff)


def _plan(options: argparse.Namespace) -> int:
    from .plan import plan

    config, presets = planned(options)
    return plan(config, options.topology, presets, not options.estimate, options.search, options.json)


def _compare(options: argparse.Namespace) -> int:
    from .compare import compare

    run_directory.runtime_directory()  # refused before anything is made
    config, presets = compared(options)
    return compare(config, presets, options.measured, options.json)


def _lint(options: argparse.Namespace) -> int:
    from .inspect import lint

    return lint(new_config(options), options.json)


COMMANDS = {
    "run": (run, "a new run in the UI; this is also what no command means"),
    "attach": (attach, "return to a run, by default the newest living one"),
    "engine": (_engine, "the engine of one host of several, for a launcher to start on each; `attach` shows the run"),
    "ls": (_ls, "list the runs"),
    "stop": (_stop, "end a run after its current step"),
    "train": (_train, "a new run without the UI"),
    "verify": (_verify, "check every checkpoint of a run; exit 1 where one is damaged"),
    "presets": (_presets, "list the presets and whether each fits these devices"),
    "inspect": (_inspect, "arrays, collectives and memory of one preset, without training"),
    "plan": (_plan, "rank presets on a TPU slice that you need not hold, by formula and by the TPU compiler"),
    "compare": (_compare, "measure presets one after the other in one run, beside what is predicted of them"),
    "lint": (_lint, "what is likely wrong with one preset; exit 1 when there are findings"),
}


def _text(arguments: list[str]) -> list[str]:
    """Raises Invalid where an argument holds bytes that are no text: no message and no file of a run could name it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise Invalid(f"{argument}: not text in the encoding {sys.getfilesystemencoding()}: rename what it names")
    return arguments


def _parser(command: str) -> argparse.ArgumentParser:
    """Only that command has its options: the first frame waits for no others."""
    parser = Parser(
        prog="shardtui",
        description="Train a sharded transformer, see how every array is laid out, and switch parallelism live.",
        epilog="The engine is a process of its own: closing the UI or losing the terminal does not stop a run.",
    )
    parser.add_argument("--version", action=Version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        options = commands.add_parser(name, help=text)
        if name == command:
            add_options(name, options)
    return parser
