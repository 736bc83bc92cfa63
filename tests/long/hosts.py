"""Do several processes train as one? `python tests/long/hosts.py [--steps 60] [--record]`.

60 steps in one process under `dp`, against the same steps in two and in four processes with five live switches, half
way saved and restored on another number of processes.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.long.losses import events, losses
from tests.suite import versions
from tests.table import Table, arguments

ROUTE = ("fsdp", "tp", "dp-tp2", "hsdp", "dp")
SMALL = ["--set=layers=2", "--set=embed=64", "--set=mlp=256", "--seq-len=64"]
COLUMNS = {
    "processes": "",
    "largest relative difference": "{:.1e}",
    "receipts with equal digests": "{}",
    "longest stall": "milliseconds",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    options = arguments(parser)
    steps: int = options.steps
    every = steps // (len(ROUTE) + 1)
    switches = [f"--switch={every * (n + 1)}:{preset}" for n, preset in enumerate(ROUTE)]
    print(f"{versions()}, {steps} steps, {' '.join(switches)}\n")
    table = Table("long/hosts", COLUMNS, options.record)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, table:
        os.environ["SHARDTUI_RUNTIME_DIR"] = f"{folder}/run"
        alone = losses(events([*SMALL, f"--steps={steps}"], folder))
        for before, after in ((2, 4), (4, 2), (2, 1), (1, 4)):
            half = steps // 2 + 1  # between two switches
            name = f"from-{before}-to-{after}"
            first = events(
                [*SMALL, f"--run={name}", f"--processes={before}", f"--steps={half}", *_up_to(half, switches)], folder
            )
            rest = [switch for switch in switches if switch not in _up_to(half, switches)]
            second = events([f"--resume={name}", f"--processes={after}", f"--steps={steps}", *rest], folder)
            found = [*losses(first), *losses(second)]
            largest = max(abs(a - b) / a for a, b in zip(alone, found, strict=True))
            receipts = [event for event in (*first, *second) if event["type"] in ("Switched", "Restored")]
            equal = sum(receipt["digests_equal"] for receipt in receipts)
            stall = max(receipt.get("stall_seconds", 0.0) for receipt in receipts)
            table.add(f"{before}, then {after}", largest, f"{equal} of {len(ROUTE) + 1}", stall)


def _up_to(step: int, switches: list[str]) -> list[str]:
    return [switch for switch in switches if int(switch.partition("=")[2].partition(":")[0]) < step]


if __name__ == "__main__":
    main()
