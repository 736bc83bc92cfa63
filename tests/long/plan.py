"""Checks `shardtui plan` with the real TPU compiler: `python tests/long/plan.py` (five minutes on two cores).

Needs the extra `tpu` but no TPU.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

SMALL = ("--model=gpt2", "--set=layers=2", "--topology=v5e:2x4")
LARGE = ("--model=gpt2-xl", "--topology=v5e:2x2", "--batch-size=64", "--preset=dp")


def plan(*arguments: str, cache: str) -> tuple[list[dict[str, Any]], float]:
    """Returns the rows of a plan, and the seconds that it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "shardtui.tui", "plan", "--json", *arguments]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "XDG_CACHE_HOME": cache})
    return json.loads(answer.stdout)["rows"], time.monotonic() - began


def main() -> int:
    """Prints each check and returns the exit code."""
    with tempfile.TemporaryDirectory() as cache:
        rows, _ = plan(*SMALL, "--preset=dp", "--preset=fsdp-tp2", cache=cache)
        again, seconds = plan(*SMALL, "--preset=dp", "--preset=fsdp-tp2", cache=cache)
        (large,), _ = plan(*LARGE, cache=cache)
    (not_cached,), _ = plan(*SMALL, "--preset=dp", cache="/dev/null")
    checks = {
        "both presets are compiled": all(row["compiled"] and not row["problems"] for row in rows),
        "the compiler sends over the axes of the formula": all(map(same_axes, rows)),
        "the state and the batch are about as large as by formula": all(map(same_arguments, rows)),
        "the same question is answered without the compiler": again == rows and seconds < 20,
        "what is too large says what it needs": large["compiled"]["peak_bytes"] > large["compiled"]["capacity_bytes"],
        "a cache that cannot be written is reported in the row": bool(
            not_cached["compiled"] and "cannot cache" in not_cached["problems"][0]
        ),
    }
    for what, holds in checks.items():
        print("✓" if holds else "✗", what)
    return 0 if all(checks.values()) else 1


def same_axes(row: dict[str, Any]) -> bool:
    """Returns whether formula and compiler use the same axes, ignoring collectives below 1 % of the traffic."""
    estimate, compiled = (_axes(row[side]["collectives"]) for side in ("estimate", "compiled"))
    return estimate == compiled


def _axes(collectives: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    least = sum(flow["bytes_sent"] for flow in collectives) / 100
    return {tuple(flow["axes"]) for flow in collectives if flow["bytes_sent"] > least}


def same_arguments(row: dict[str, Any]) -> bool:
    """Returns whether arguments agree within 5 %: on a TPU arrays are padded to tiles, small shards the most."""
    return abs(row["estimate"]["argument_bytes"] / row["compiled"]["argument_bytes"] - 1) < 0.05


if __name__ == "__main__":
    sys.exit(main())
