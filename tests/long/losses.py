"""Do five live switches change the losses? `python tests/long/losses.py [--steps 60] [--seeds 3]` prints a table.

For each seed one run under `dp` alone and one that switches every sixth of the way, dropout on. The table in
docs/measurements.md was made by this command.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from os import environ
from typing import Any

ROUTE = ("fsdp", "tp", "dp-tp2", "hsdp", "dp")


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
    options = parser.parse_args()
    every = options.steps // (len(ROUTE) + 1)
    switches = [f"--switch={every * (n + 1)}:{preset}" for n, preset in enumerate(ROUTE)]
    print(f"Python {sys.version.split()[0]}, jax {version('jax')}, flax {version('flax')}, {options.steps} steps,")
    print(f"switched: {' '.join(switches)}\n")
    print("| seed | last loss | largest relative difference | receipts with equal digests | longest stall |")
    print("|---|---|---|---|---|")
    for seed in range(options.seeds):
        common = [f"--steps={options.steps}", f"--seed={seed}"]
        with tempfile.TemporaryDirectory() as folder:
            plain = losses(events(common, folder))
            switched = events([*common, *switches], folder)
        receipts = [event for event in switched if event["type"] == "Switched"]
        largest = max(abs(a - b) / a for a, b in zip(plain, losses(switched), strict=True))
        equal = sum(receipt["digests_equal"] for receipt in receipts)
        stall = max(receipt["stall_seconds"] for receipt in receipts)
        print(
            f"| {seed} | {plain[-1]:.4f} | {largest:.1e} | {equal} of {len(ROUTE)} | {stall * 1e3:.0f} ms |", flush=True
        )


if __name__ == "__main__":
    main()
