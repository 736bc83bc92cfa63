"""argparse, with what it repeats of the command line made printable."""

import argparse
import sys
from typing import NoReturn

from .clean import printable


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {printable(message)}\n")
