"""argparse with messages that quote the command line in printable characters."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, cast

from ...engine.base.suggestion import suggestion
from ..terminal.clean import printable


class Parser(argparse.ArgumentParser):
    """Prints usage errors without control characters."""

    def error(self, message: str) -> NoReturn:
        """Prints the usage, the error and, for a mistyped option, the closest one; exits with 2."""
        self.print_usage(sys.stderr)
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            known = [option for action in actions(self) for option in action.option_strings]
            message = f"{message}: {suggestion(unknown.split()[0], known)}see `{self.prog} COMMAND --help`"
        self.exit(2, f"{self.prog}: error: {printable(message)}\n")


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields all options and arguments of a parser, including those of its commands."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] # argparse has no other way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for command in cast("dict[str, argparse.ArgumentParser]", cast(Any, action).choices).values():
                yield from actions(command)


class Version(argparse.Action):
    """Prints the version, and reads it only if requested: that takes longer than parsing all arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, help="show the version and exit", **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Prints the version and exits."""
        from importlib.metadata import version

        print(parser.prog, version("shardtui"))
        parser.exit()
