"""Measures speed and prints it with what is to be reached: `python tests/bench/run.py [NAME …] [--record]`.

Every figure is of paired repeats in one run, against a plain program that does the same. docs/benchmarks.md has the
tables, which `--record` renews.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.tables import Cell, figure_heads, figure_row
from tests.bench.figure import COLUMNS
from tests.suite import arguments, machine, modules, versions
from tests.table import Table, python

NAMES = (
    *("watching", "own_loop", "hosts", "step", "breakdown", "origins", "switch", "digest", "array_numbers", "memory"),
    *("depth", "start", "terminal", "remote", "history", "large", "data", "weights", "planning", "maxtext"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write docs/data/bench/NAME.json")
    options = arguments(parser, NAMES)
    print(f"{machine()}; {versions()}\n")
    for name, module in modules("bench", options.names):
        with Figures(f"bench/{name}", COLUMNS, options.record, f"python tests/bench/run.py {name}") as table:
            for figure in module.run():
                table.add(*figure.cells)


class Figures(Table):
    """Printed as docs/tables.py draws them."""

    @property
    def heads(self) -> list[str]:
        return figure_heads([python()])

    def shown(self, cells: Sequence[Cell]) -> list[str]:
        return figure_row({python(): dict(zip(self.columns, cells, strict=True))}, [python()])


if __name__ == "__main__":
    main()
