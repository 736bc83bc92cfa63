"""Measures speed and prints it with what is to be reached: `python tests/bench/run.py [NAME …] [--json] [--record]`.

Every figure is of paired repeats in one run, against a plain program that does the same. docs/benchmarks.md has the
tables, which `--record` renews.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.tables import Cell, figure_heads, figure_row
from tests.bench.figure import COLUMNS, Figure
from tests.suite import arguments, machine, modules, versions
from tests.table import Table, python

NAMES = (
    *("watching", "own_loop", "hosts", "step", "breakdown", "origins", "switch", "digest", "array_numbers", "memory"),
    *("depth", "start", "terminal", "remote", "history", "large", "data", "weights", "planning", "maxtext"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="a list of {name, value, unit, target, met}")
    parser.add_argument("--record", action="store_true", help="write docs/data/bench/NAME.json")
    options = arguments(parser, NAMES)
    figures: list[Figure] = []
    out = sys.stderr if options.json else sys.stdout
    print(f"{machine()}; {versions()}\n", file=out)
    for name, module in modules("bench", options.names):
        command = f"python tests/bench/run.py {name}"
        with Figures(f"bench/{name}", COLUMNS, options.record, command, out) as table:
            for figure in module.run():
                figures.append(figure)
                table.add(*figure.cells)
    if options.json:
        print(json.dumps([figure.entry for figure in figures]))
    return 0


class Figures(Table):
    """Printed as docs/tables.py draws them."""

    @property
    def heads(self) -> list[str]:
        return figure_heads([python()])

    def shown(self, cells: Sequence[Cell]) -> list[str]:
        return figure_row({python(): dict(zip(self.columns, cells, strict=True))}, [python()])


if __name__ == "__main__":
    sys.exit(main())
