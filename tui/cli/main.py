"""The `shardtui` command: reads its arguments and runs what they ask for."""

import argparse
import io
import os
import sys

from ...engine.base.invalid import Invalid, suggestion
from ..terminal.clean import warn
from ..terminal.exit_codes import FAILED, INTERRUPTED, REFUSED
from ..terminal.splash import COMPLETING
from .commands import COMMANDS
from .options import add_options
from .parser import Parser, Version


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code. `arguments`: without the program's name, by default from sys.argv."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # instead of failing on what the locale cannot encode
    if COMPLETING in os.environ:
        from .completion import complete

        complete(_parser(*COMMANDS))
    try:
        given = _with_command(_text(arguments))
        options = _parser(given[0]).parse_args(given, argparse.Namespace(offers_runs=not arguments))
        return COMMANDS[options.command].run(options)
    except Invalid as error:
        warn(*error.problems)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout once more
        return FAILED


def _with_command(arguments: list[str]) -> list[str]:
    """Adds the default command `run` if none is given. Raises Invalid for an unknown command."""
    if arguments and arguments[0] in (*COMMANDS, "-h", "--help", "--version"):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        maybe = suggestion(arguments[0], COMMANDS)
        raise Invalid(f"{arguments[0]}: no such command: {maybe}choose from {', '.join(COMMANDS)}")
    return ["run", *arguments]


def _text(arguments: list[str]) -> list[str]:
    """Returns the arguments. Raises Invalid if one is not text: no message or file of a run could quote it."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise Invalid(
                f"{argument}: not valid text in the encoding {sys.getfilesystemencoding()}: rename the file or "
                "directory"
            )
    return arguments


def _parser(*wanted: str) -> argparse.ArgumentParser:
    """Returns the parser; only the `wanted` commands get their options, so that the UI starts sooner."""
    parser = Parser(
        prog="shardtui",
        description="Train a sharded transformer, see how every array is laid out, and switch parallelism live.",
        epilog="The engine is a process of its own: closing the UI or losing the terminal does not stop a run.",
    )
    parser.add_argument("--version", action=Version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, summary, example) in COMMANDS.items():
        options = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: shardtui {name} {example}".rstrip(),
        )
        if name in wanted:
            add_options(name, options)
    return parser
