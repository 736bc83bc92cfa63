"""argparse with messages that quote the command line in printable characters."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, cast

from ...engine.base.output import printable, show
from ...engine.base.user_error import suggestion

HELP = "show this help and exit"
MORE = "see --help all"
"""The description of a group of options that few need: only `--help all` lists them."""


class Parser(argparse.ArgumentParser):
    """Prints usage errors without control characters, and takes an optional argument after options, too."""

    def __init__(self, *, add_help: bool = True, **settings: Any) -> None:
        super().__init__(add_help=False, **settings)
        self.help = self.add_argument("-h", "--help", action=Help) if add_help else None

    def add_argument_group(self, title: str | None = None, description: str | None = None, **settings: Any) -> Any:
        if description == MORE and self.help:
            self.help.nargs, self.help.metavar, self.help.help = "?", "all", f"{HELP}; all: every option"
        return super().add_argument_group(title, description, **settings)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] # it has overloads
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse, which before Python 3.12.7 takes an optional argument only right after the one before it."""
        found, extras = super().parse_known_args(args, namespace)
        for action in actions(self):
            is_missing = action.nargs == "?" and not action.option_strings and getattr(found, action.dest, 0) is None
            if is_missing and extras and not extras[0].startswith("-"):
                setattr(found, action.dest, extras.pop(0))
        return found, extras

    def error(self, message: str) -> NoReturn:
        """Prints the usage, the error and, for a mistyped option, the closest one; exits with 2."""
        self.print_usage(sys.stderr)
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            known = [option for action in actions(self) for option in action.option_strings]
            message = f"{message}: {suggestion(unknown.split()[0], known)}see `{self.prog} COMMAND --help`"
        self.exit(2, f"{self.prog}: error: {printable(message)}\n")


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] # argparse has no other way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for command in cast("dict[str, argparse.ArgumentParser]", cast(Any, action).choices).values():
                yield from actions(command)


class Help(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=HELP)

    def __call__(self, parser: argparse.ArgumentParser, _: object, wanted: object, *__: object) -> NoReturn:
        for group in parser._action_groups:  # pyright: ignore[reportPrivateUsage] # as above
            if group.description != MORE:
                continue
            if wanted == "all":
                group.description = None
            else:
                for action in group._group_actions:  # pyright: ignore[reportPrivateUsage] # as above
                    action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


class Version(argparse.Action):
    """Prints the version, and reads it only if requested: that takes longer than parsing all arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, help="show the version and exit", **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        show(f"{parser.prog} {version('shardtui')}")
        parser.exit()
