"""Does a digest show every change? `python tests/long/digest.py [--record]` (ten minutes): changes
of arrays of every dtype."""

from collections import Counter

import cpu_devices
from shardtui.engine.program.digest import digests

from tests.changes import CHANGES, DTYPES, tried

TRIES = 10_000
"""Of each change of each dtype."""
COLUMNS = {"change": "", "arrays changed": "{:,}", "missed": "{:,}"}


def main() -> None:
    changed, missed = Counter[str](), Counter[str]()
    with cpu_devices.table("long/digest", COLUMNS) as table:
        for result in tried(digests, DTYPES, TRIES):
            changed[result.change] += result.changed
            missed[result.change] += result.missed
        for change in CHANGES:
            table.add(change, changed[change], missed[change])


if __name__ == "__main__":
    main()
