"""Compiles for a slice that nobody has to hold, and looks at what `shardtui plan` makes of it.

`python tests/long/plan.py` (five minutes on two cores) needs the extra `tpu`.
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
    """The rows, and the seconds that they took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "shardtui.tui", "plan", "--json", *arguments]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "XDG_CACHE_HOME": cache})
    return json.loads(answer.stdout)["rows"], time.monotonic() - began


def main() -> int:
    with tempfile.TemporaryDirectory() as cache:
        rows, _ = plan(*SMALL, "--preset=dp", "--preset=fsdp-tp2", cache=cache)
        again, seconds = plan(*SMALL, "--preset=dp", "--preset=fsdp-tp2", cache=cache)
        (large,), _ = plan(*LARGE, cache=cache)
    (kept_nowhere,), _ = plan(*SMALL, "--preset=dp", cache="/dev/null")
    checks = {
        "both presets are compiled": all(row["compiled"] and not row["problems"] for row in rows),
        "the compiler sends over the axes of the formula": all(map(same_axes, rows)),
        "the state and the batch are about as large as by formula": all(map(same_arguments, rows)),
        "the same question is answered without the compiler": again == rows and seconds < 20,
        "what is too large says what it needs": large["compiled"]["peak_bytes"] > large["compiled"]["capacity_bytes"],
        "a cache that cannot be written is told in the row": bool(
            kept_nowhere["compiled"] and "cannot be kept" in kept_nowhere["problems"][0]
        ),
    }
    for what, holds in checks.items():
        print("✓" if holds else "✗", what)
    return 0 if all(checks.values()) else 1


def same_axes(row: dict[str, Any]) -> bool:
    """Of all that is worth a hundredth of the traffic."""
    estimate, compiled = (_axes(row[side]["collectives"]) for side in ("estimate", "compiled"))
    return estimate == compiled


def _axes(collectives: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    least = sum(flow["bytes_sent"] for flow in collectives) / 100
    return {tuple(flow["axes"]) for flow in collectives if flow["bytes_sent"] > least}


def same_arguments(row: dict[str, Any]) -> bool:
    """To a twentieth: on a device arrays are padded to whole tiles, small parts of them most."""
    return abs(row["estimate"]["argument_bytes"] / row["compiled"]["argument_bytes"] - 1) < 0.05


if __name__ == "__main__":
    sys.exit(main())
