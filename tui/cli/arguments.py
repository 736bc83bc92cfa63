"""argparse, with what it repeats of the command line made printable."""

import argparse
import sys
from typing import Any, NoReturn

from ..terminal.clean import printable


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {printable(message)}\n")


class Version(argparse.Action):
    """Reads the version only where it is asked for: that takes longer than all else that is done with arguments."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, help="show the version and exit", **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(parser.prog, version("shardtui"))
        parser.exit()
