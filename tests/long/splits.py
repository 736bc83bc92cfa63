"""What splitting the sequence or the experts costs, and explicit axis types: `python tests/long/splits.py [MODEL]`
prints the table of docs/measurements.md (about ten minutes on two idle cores).

Each preset trains the same 60 steps as `dp` with dropout on, in a run of its own; `shardtui compare` measures it.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from typing import Any

from losses import events, losses, output
from shardtui.engine.base import figures

STEPS = 60
CASES = (
    ("nano", ("--seq-len=128",), ("dp", "sp2", "dp-sp2", "fsdp-tp2", "fsdp-tp2-explicit")),
    ("nano", ("--seq-len=256", "--batch-size=8", "--set=context=256"), ("dp", "sp2", "dp-sp2")),
    ("nano-moe", ("--seq-len=32", "--batch-size=8"), ("dp", "dp-ep4", "ep2-tp2")),
    ("nano-moe", ("--seq-len=128",), ("dp", "dp-ep4")),
)
HEADS = (
    "model",
    "preset",
    "a step",
    "sent by formula",
    "as compiled",
    "peak, predicted",
    "largest difference of a loss",
)


def main() -> None:
    print(f"Python {sys.version.split()[0]}, jax {version('jax')}, flax {version('flax')}, {STEPS} steps\n")
    print(f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", sep="\n")
    for model, settings, presets in (case for case in CASES if case[0] in (sys.argv[1:] or case)):
        common = [f"--model={model}", *settings]
        with tempfile.TemporaryDirectory() as folder:
            board = json.loads(output(["compare", *presets, "--json", *common], folder))
            rows = {row["preset"]: row for row in board["rows"]}
            runs = {
                preset: losses(events([f"--steps={STEPS}", f"--preset={preset}", *common], folder))
                for preset in presets
            }
        for preset in presets:
            apart = max(abs(a - b) / a for a, b in zip(runs["dp"], runs[preset], strict=True))
            print(
                f"| {' '.join((model, *settings))} | {preset} | {_measured(rows[preset])} | {apart:.1e} |", flush=True
            )


def _measured(row: dict[str, Any]) -> str:
    formula, compiled = (figures.size(row[source]["bytes_sent"]) for source in ("estimate", "compiled"))
    seconds, peak = figures.seconds(row["measured"]["step_seconds"]), figures.size(row["compiled"]["peak_bytes"])
    return f"{seconds} | {formula} | {compiled} | {peak}"


if __name__ == "__main__":
    main()
