"""What splitting the sequence or the experts costs, and explicit axis types: `python tests/long/splits.py [MODEL]
[--record]` (about ten minutes on two idle cores).

Each preset trains the same 60 steps as `dp` with dropout on, in a run of its own; `shardtui compare` measures it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.long.losses import events, losses, output
from tests.suite import versions
from tests.table import Table, arguments

STEPS = 60
CASES = (
    ("nano", ("--seq-len=128",), ("dp", "sp2", "dp-sp2", "fsdp-tp2", "fsdp-tp2-explicit")),
    ("nano", ("--seq-len=256", "--batch-size=8", "--set=context=256"), ("dp", "sp2", "dp-sp2")),
    ("nano-moe", ("--seq-len=32", "--batch-size=8"), ("dp", "dp-ep4", "ep2-tp2")),
    ("nano-moe", ("--seq-len=128",), ("dp", "dp-ep4")),
)
COLUMNS = {
    "model": "",
    "preset": "",
    "a step": "seconds",
    "sent by formula": "bytes",
    "as compiled": "bytes",
    "peak, predicted": "bytes",
    "largest difference of a loss": "{:.1e}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", choices=sorted({model for model, *_ in CASES}))
    options = arguments(parser)
    print(f"{versions()}, {STEPS} steps\n")
    with Table("long/splits", COLUMNS, options.record) as table:
        for model, settings, presets in (case for case in CASES if case[0] == (options.model or case[0])):
            compare(table, model, settings, presets)


def compare(table: Table, model: str, settings: tuple[str, ...], presets: tuple[str, ...]) -> None:
    common = [f"--model={model}", *settings]
    with tempfile.TemporaryDirectory() as folder:
        board = json.loads(output(["compare", *presets, "--json", *common], folder))
        rows = {row["preset"]: row for row in board["rows"]}
        runs = {
            preset: losses(events([f"--steps={STEPS}", f"--preset={preset}", *common], folder)) for preset in presets
        }
    for preset in presets:
        apart = max(abs(a - b) / a for a, b in zip(runs["dp"], runs[preset], strict=True))
        name = " ".join((model, *settings))
        table.add(name, preset, *_measured(rows[preset]), apart if preset != "dp" else None)


def _measured(row: dict[str, Any]) -> tuple[float, int, int, int]:
    formula, compiled = (row[source]["bytes_sent"] for source in ("estimate", "compiled"))
    return row["measured"]["step_seconds"], formula, compiled, row["compiled"]["peak_bytes"]


if __name__ == "__main__":
    main()
