"""Injects faults into real runs and prints what survived: `python tests/faults/run.py [NAME …] [--long]`.

The short form takes a few minutes and is part of `.ci/run`; the table of the long form stands in docs/faults.md. Exit 1
where anything did not survive.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suite import arguments, machine, modules, versions

LONG = {
    "kills": 50,
    "hosts": 10,
    "damage": 25,
    "hops": 3,
    "loop": 50,
    "soak": 25,
    "signals": 10,
    "floods": 10,
    "neighbours": 5,
    "messages": 1,
    "hostile": 1,
    "fuzz": 1,
    "terminals": 5,
    "keys": 30,
}
"""How many times as much the long form does."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="as often as docs/faults.md says")
    options = arguments(parser, LONG)
    print(f"{machine()}; {versions()}\n")
    print("| injected | times | survived | |")
    print("|---|---|---|---|", flush=True)
    good = True
    for name, module in modules("faults", options.names):
        for row in module.run(LONG[name] if options.long else 1):
            print(f"| {row.injected} | {row.times:,} | {row.survived:,} | {row.note} |", flush=True)
            good &= row.is_good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
