"""The boards of `shardtui plan` for large models: `python tests/long/boards.py [NAME …] [--record]`.

Needs the extra `tpu`, for `gpus` the extra `gpu-compiler`, no TPU or GPU, and up to two minutes a compilation on two
cores; what was compiled before is kept.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from shardtui.engine.base import formatting
from shardtui.engine.planning.ranking import title_of

from tests.suite import printed, versions
from tests.table import Cell, Table, arguments

GPT3 = {
    "64-chips": "--topology=v5p:4x4x4 --batch-size=64",
    "1024-chips-search": "--topology=v5p:8x8x16 --batch-size=64 --search",
}
"""Options of a plan for GPT-3 175B."""
DEVICES = {
    "newer": """
gpt3-175b  2*v5p:4x4x4 128  --preset=hsdp     --preset=fsdp-tp8
llama3-70b 2*v5p:4x4x4 128  --preset=hsdp     --set=seq_len=2048
gpt3-175b  tpu7x:4x4x4 128  --preset=fsdp-tp4
llama3-70b tpu7x:4x4x4 128  --preset=fsdp-tp4 --set=seq_len=2048
""",
    "gpus": """
gpt3-175b  h100:8x8    64   --preset=fsdp     --preset=fsdp-tp8
llama3-70b h100:8x8    64   --preset=fsdp     --preset=fsdp-tp8 --set=seq_len=2048
gpt3-175b  h100:128x8  1024 --preset=fsdp     --preset=fsdp-tp8
llama3-70b h100:128x8  1024 --preset=fsdp     --preset=fsdp-tp8 --set=seq_len=2048
""",
}
"""Model, topology, batch size and options of each plan."""
LONG = ("--model=gpt2-xl", "--preset=docs/examples/long.toml", "--batch-size=1", "--set=remat=true")
SEQUENCES = (
    *(("v5p:2x2x4", 32_768, "auto"), ("v5p:2x2x4", 131_072, "auto"), ("v5p:4x4x4", 131_072, "auto")),
    *(("v5p:4x4x4", 32_768, "plain"), ("v5p:2x2x4", 131_072, "plain"), ("v5p:4x4x4", 131_072, "plain")),
)
"""Slice, tokens and attention."""
COLUMNS = {"preset": "", "verdict": "{}", "peak": "bytes", "sent a step": "{}", "a step": "seconds", "bound by": "{}"}
COLUMNS |= {"estimate of the peak off": "{:+.2g} %", "of what is sent": "{:+.2g} %"}
SEQUENCE_COLUMNS = {"topology": "", "tokens": "", "attention": ""}
SEQUENCE_COLUMNS |= {"verdict": "{}", "peak": "bytes", "sent over `seq`": "bytes"}
LEAST = 0.01
"""Of all that is sent: what is less is left out."""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = (*GPT3, *DEVICES, "long-context")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)}; all by default")
    options = arguments(parser)
    print(f"{versions()}\n")
    for name in options.names or names:
        add = add_gpt3 if name in GPT3 else add_devices if name in DEVICES else add_sequences
        add(name, options.record)
        print()


def add_gpt3(name: str, records: bool) -> None:
    asked = GPT3[name]
    searches = "--search" in asked
    command = f"shardtui plan --model=gpt3-175b {asked}"
    with Table(f"plan/{name}", COLUMNS, records, command) as table:
        for row in board("--model=gpt3-175b", *asked.split()):
            if row["verdict"] != "infeasible" and (row["compiled"] or not searches):
                table.add(*cells(row))


def add_devices(name: str, records: bool) -> None:
    columns = {**dict.fromkeys(("model", "devices", "batch"), ""), **COLUMNS}
    with Table(f"plan/{name}", columns, records, f"python tests/long/boards.py {name}") as table:
        for line in DEVICES[name].strip().splitlines():
            model, topology, batch, *rest = line.split()
            for row in board(f"--model={model}", f"--topology={topology}", f"--batch-size={batch}", *rest):
                table.add(model, topology, int(batch), *cells(row))


def add_sequences(name: str, records: bool) -> None:
    with Table(f"plan/{name}", SEQUENCE_COLUMNS, records, f"python tests/long/boards.py {name}") as table:
        for topology, tokens, attention in SEQUENCES:
            sizes = (f"--seq-len={tokens}", f"--set=context={tokens}", f"--set=attention={attention}")
            (row,) = board(*LONG, f"--topology={topology}", *sizes)
            cost = row["compiled"] or row["estimate"]
            sent = sum(flow["bytes_sent"] for flow in cost["collectives"] or ()) or None
            table.add(topology, f"{tokens:,}", attention, row["verdict"], cost["peak_bytes"], sent)


def board(*asked: str) -> list[Row]:
    return json.loads(printed("-m", "shardtui.tui", "plan", "--json", *asked))["rows"]


def cells(row: Row) -> list[Cell]:
    estimate, compiled = row["estimate"], row["compiled"]
    cost = compiled or estimate
    assert cost, row
    over = cost["peak_bytes"] - cost["capacity_bytes"]
    verdict = f"too large by {formatting.size(over)}" if row["verdict"] == "too large" else row["verdict"]
    timed = compiled if compiled and compiled["step_seconds"] else estimate or cost
    flows = sent(compiled or {}) or sent(estimate or {})
    least = LEAST * sum(flows.values())
    spread = ", ".join(f"{axes} {formatting.size(count)}" for axes, count in flows.items() if count > least)
    off = (None, None)
    if compiled and estimate:
        off = (apart(estimate["peak_bytes"], compiled["peak_bytes"]), apart(*map(total, (estimate, compiled))))
    title = title_of(row["preset"], row["settings"])
    return [title, verdict, cost["peak_bytes"], spread, timed["step_seconds"], row["bound"], *off]


def sent(cost: Row) -> dict[str, int]:
    """Bytes by axes, most first."""
    found: dict[str, int] = {}
    for flow in cost.get("collectives") or ():
        axes = formatting.over(flow["axes"], flow["network"])
        found[axes] = found.get(axes, 0) + flow["bytes_sent"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def total(cost: Row) -> int:
    return sum(sent(cost).values())


def apart(estimate: float, compiled: float) -> float | None:
    """Percent; None where the compiler says nothing."""
    return 100 * (estimate / compiled - 1) if compiled else None


if __name__ == "__main__":
    main()
