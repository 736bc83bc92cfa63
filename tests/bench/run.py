"""Measures speed and prints it beside what is to be reached: `python tests/bench/run.py [NAME …] [--json]`.

Every figure is of paired repeats in one run, against a plain program that does the same. The table of all stands in
docs/benchmarks.md.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.figure import Figure
from tests.suite import machine, own_directories, versions

NAMES = ("watching", "step", "switch", "memory", "depth", "start", "terminal", "history", "data", "gpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", action="store_true", help="a list of {name, value, unit, target, met}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"{', '.join(sorted(unknown))}: the names are {', '.join(NAMES)}")
    figures: list[Figure] = []
    if not options.json:
        print(f"{machine()}; {versions()}\n")
        print("| figure | value | spread | to reach | | against |\n|---|---|---|---|---|---|", flush=True)
    with own_directories():
        for name in options.names or NAMES:
            began = time.monotonic()
            for figure in importlib.import_module(f"tests.bench.{name}").run():
                figures.append(figure)
                if not options.json:
                    print(_row(figure), flush=True)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps([_entry(figure) for figure in figures]))
    return 0


def _row(figure: Figure) -> str:
    cells = (figure.name, f"{figure.value:.3g} {figure.unit}", figure.spread, figure.target, figure.verdict)
    return f"| {' | '.join(cells)} | {figure.baseline} |"


def _entry(figure: Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "target": figure.target,
        "met": figure.is_met,
    }


if __name__ == "__main__":
    sys.exit(main())
