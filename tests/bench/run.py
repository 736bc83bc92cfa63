"""Measures speed and prints it beside what is to be reached: `python tests/bench/run.py [NAME …] [--json]`.

Every figure is of paired repeats in one run, against a plain program that does the same. The table of all stands in
docs/benchmarks.md.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.figure import Figure
from tests.suite import arguments, machine, modules, versions

NAMES = (
    "watching",
    "own_loop",
    "hosts",
    "step",
    "switch",
    "digest",
    "memory",
    "depth",
    "start",
    "terminal",
    "history",
    "data",
    "planning",
    "hlo",
    "gpu",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="a list of {name, value, unit, target, met}")
    options = arguments(parser, NAMES)
    figures: list[Figure] = []
    if not options.json:
        print(f"{machine()}; {versions()}\n")
        print("| figure | value | spread | to reach | | against |\n|---|---|---|---|---|---|", flush=True)
    for _, module in modules("bench", options.names):
        for figure in module.run():
            figures.append(figure)
            if not options.json:
                print(_row(figure), flush=True)
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
