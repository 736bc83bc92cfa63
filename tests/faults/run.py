"""Injects faults into real runs and prints what survived: `python tests/faults/run.py [NAME …] [--long]`.

The short form takes a few minutes and is part of `.ci/run`; the table of the long form stands in docs/faults.md. Exit 1
where anything did not survive.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suite import machine, own_directories, versions

LONG = {
    "kills": 50,
    "damage": 25,
    "hops": 3,
    "soak": 25,
    "signals": 10,
    "messages": 1,
    "hostile": 1,
    "fuzz": 1,
    "terminals": 5,
}
"""How many times as much the long form does."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LONG))
    parser.add_argument("--long", action="store_true", help="as often as docs/faults.md says")
    options = parser.parse_args()
    if unknown := set(options.names) - set(LONG):
        parser.error(f"{', '.join(sorted(unknown))}: the names are {', '.join(LONG)}")
    print(f"{machine()}; {versions()}\n")
    print("| injected | times | survived | |")
    print("|---|---|---|---|", flush=True)
    good = True
    with own_directories():
        for name in options.names or LONG:
            began = time.monotonic()
            for row in importlib.import_module(f"tests.faults.{name}").run(LONG[name] if options.long else 1):
                print(f"| {row.injected} | {row.times:,} | {row.survived:,} | {row.note} |", flush=True)
                good &= row.is_good
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
