"""What a device needs for GPT-2 XL on long sequences that are split over a slice, by attention: `python
tests/long/long_context.py [--record]`.

Needs the extra `tpu`, no TPU, and some minutes a compilation on two cores; what was compiled before is kept.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suite import versions
from tests.table import Table, arguments

COMMAND = ("--model=gpt2-xl", "--preset=docs/examples/long.toml", "--batch-size=1", "--set=remat=true")
ROWS = (
    ("v5p:2x2x4", 32_768, "auto"),
    ("v5p:2x2x4", 131_072, "auto"),
    ("v5p:4x4x4", 131_072, "auto"),
    ("v5p:4x4x4", 32_768, "plain"),
    ("v5p:2x2x4", 131_072, "plain"),
    ("v5p:4x4x4", 131_072, "plain"),
)
"""Slice, tokens and attention."""
COLUMNS = {
    "topology": "",
    "tokens": "",
    "attention": "",
    "tokens a device": "{:,}",
    "verdict": "{}",
    "from": "{}",
    "peak": "bytes",
    "of a device": "part",
    "sent over `seq`": "bytes",
}


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}\n")
    asked = "--topology=… --seq-len=… --set=context=… --set=attention=…"
    with Table("plan/long-context", COLUMNS, options.record, f"shardtui plan {' '.join(COMMAND)} {asked}") as table:
        for topology, tokens, attention in ROWS:
            row = planned(topology, tokens, attention)
            cost, devices = row["compiled"] or row["estimate"], math.prod(row["mesh"].values())
            table.add(
                topology,
                f"{tokens:,}",
                attention,
                tokens // devices,
                row["verdict"],
                "compiler" if row["compiled"] else "formula",
                cost["peak_bytes"],
                cost["peak_bytes"] / cost["capacity_bytes"],
                sum(flow["bytes_sent"] for flow in cost["collectives"] or ()) or None,
            )


def planned(topology: str, tokens: int, attention: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "shardtui.tui", "plan", "--json", *COMMAND, f"--topology={topology}"]
    command += [f"--seq-len={tokens}", f"--set=context={tokens}", f"--set=attention={attention}"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    (row,) = found["rows"]
    return row


if __name__ == "__main__":
    main()
