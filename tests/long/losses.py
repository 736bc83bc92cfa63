"""Do five live switches change the losses? `python tests/long/losses.py [--steps 60] [--seeds 3] [--record]`.

For each seed one run under `dp` alone and one that switches every sixth of the way, dropout on.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from os import environ
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suite import versions
from tests.table import Table, arguments

ROUTE = ("fsdp", "tp", "dp-tp2", "hsdp", "dp")
COLUMNS = {
    "seed": "",
    "last loss": "{:.4f}",
    "largest relative difference": "{:.1e}",
    "receipts with equal digests": "{}",
    "longest stall": "milliseconds",
}


def output(arguments: list[str], folder: str) -> bytes:
    run = subprocess.run(
        [sys.executable, "-m", "shardtui.tui", *arguments],
        stdout=subprocess.PIPE,
        env={**environ, "XDG_STATE_HOME": folder, "SHARDTUI_RUNTIME_DIR": f"{folder}/run"},
        check=True,
    )
    return run.stdout


def events(arguments: list[str], folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(["train", "--json", *arguments], folder).splitlines()]


def losses(found: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in found if event["type"] == "StepDone"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    options = arguments(parser)
    every = options.steps // (len(ROUTE) + 1)
    switches = [f"--switch={every * (n + 1)}:{preset}" for n, preset in enumerate(ROUTE)]
    print(f"{versions()}, {options.steps} steps,\nswitched: {' '.join(switches)}\n")
    with Table("long/losses", COLUMNS, options.record) as table:
        for seed in range(options.seeds):
            table.add(seed, *measured(seed, options.steps, switches))


def measured(seed: int, steps: int, switches: list[str]) -> tuple[float, float, str, float]:
    common = [f"--steps={steps}", f"--seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        plain = losses(events(common, folder))
        switched = events([*common, *switches], folder)
    receipts = [event for event in switched if event["type"] == "Switched"]
    largest = max(abs(a - b) / a for a, b in zip(plain, losses(switched), strict=True))
    equal = sum(receipt["digests_equal"] for receipt in receipts)
    return plain[-1], largest, f"{equal} of {len(ROUTE)}", max(receipt["stall_seconds"] for receipt in receipts)


if __name__ == "__main__":
    main()
