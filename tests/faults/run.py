"""Injects faults into real runs and prints what survived: `python tests/faults/run.py [NAME …] [--long] [--record]`.

The short form takes a few minutes and is part of `.ci/run`; docs/faults.md has the tables of the long form, which
`--record` renews. Exit 1 where anything did not survive.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.row import NotRun
from tests.suite import arguments, machine, modules, versions
from tests.table import Table

LONG = (
    {"kills": 50, "phases": 2, "elastic": 5, "stuck": 6, "endings": 3, "stopped": 1, "world": 1}
    | {"compilers": 1, "midway": 1, "damage": 25, "lease": 1, "loop": 50, "soak": 25, "floods": 10}
    | {"neighbours": 1, "messages": 1, "hostile": 1, "readers": 46, "terminals": 5, "keys": 30}
)
"""Factor by which the long form does more than the short one."""
COLUMNS = {"injected": "", "times": "{:,}", "survived": "{:,}", "seen": "{}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="as often as docs/faults.md says")
    parser.add_argument("--record", action="store_true", help="write docs/data/faults/NAME.json; not of a short form")
    options = arguments(parser, LONG)
    if options.record and not options.long:
        parser.error("--record without --long: the docs hold the long form")
    print(f"{machine()}; {versions()}\n")
    good = True
    for name, module in modules("faults", options.names):
        command = f"python tests/faults/run.py {name}{' --long' * options.long}"
        with Table(f"faults/{name}", COLUMNS, options.record, command) as table:
            try:
                for row in module.run(LONG[name] if options.long else 1):
                    table.add(row.injected, row.times, row.survived, row.note or None)
                    good &= row.is_good
            except NotRun as reason:
                table.add(f"more {name}", 0, 0, f"not run: {reason}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
