"""The boards of `shardtui plan` for GPT-3 on 64 and on 1,024 chips: `python tests/long/boards.py [NAME …] [--record]`.

Needs the extra `tpu`, no TPU, and up to two minutes a compilation on two cores; what was compiled before is kept.
`newer` has GPT-3 and Llama 3 70B on two slices and on tpu7x, `gpus` both on GPUs, with the extra `gpu-compiler`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from shardtui.engine.base import figures
from shardtui.engine.planning.ranking import title_of

from tests.suite import versions
from tests.table import Cell, Table, arguments

BOARDS = {
    "64-chips": ("--topology=v5p:4x4x4", "--batch-size=64"),
    "64-chips-batch-512": ("--topology=v5p:4x4x4", "--batch-size=512"),
    "1024-chips-batch-512": ("--topology=v5p:8x8x16", "--batch-size=512"),
    "1024-chips-search": ("--topology=v5p:8x8x16", "--batch-size=64", "--search"),
}
COLUMNS = {
    "preset": "",
    "verdict": "{}",
    "peak": "bytes",
    "of a device": "part",
    "sent a step": "{}",
    "a step": "seconds",
    "bound by": "{}",
    "from": "{}",
    "estimate of the peak off": "{:+.2g} %",
    "of what is sent": "{:+.2g} %",
}
DEVICE_COLUMNS = {"model": "", "devices": "", "batch": "", **COLUMNS}
NEWER = """
gpt3-175b  2*v5p:4x4x4 128  --preset=hsdp     --preset=fsdp-tp8
llama3-70b 2*v5p:4x4x4 128  --preset=hsdp     --set=seq_len=2048
gpt3-175b  tpu7x:4x4x4 128  --preset=fsdp-tp4
llama3-70b tpu7x:4x4x4 128  --preset=fsdp-tp4 --set=seq_len=2048
"""
GPUS = """
gpt3-175b  h100:8x8    64   --preset=fsdp     --preset=fsdp-tp8
llama3-70b h100:8x8    64   --preset=fsdp     --preset=fsdp-tp8 --set=seq_len=2048
gpt3-175b  h100:128x8  1024 --preset=fsdp     --preset=fsdp-tp8
llama3-70b h100:128x8  1024 --preset=fsdp     --preset=fsdp-tp8 --set=seq_len=2048
"""
DEVICES = {"newer": NEWER, "gpus": GPUS}
"""Model, topology, batch size, options."""
BY_HAND = ("--topology=v5p:4x4x4", "--batch-size=64", "--preset=data8-model8", "--preset=fsdp8-model8")
HELD = {"a device holds": "", "by hand": "{}", "`data8-model8`": "bytes", "`fsdp8-model8`": "bytes"}
HALF = "kernel copies"
HAND = f"{175 * 2 / 8:g} GB"
"""Parameters of two bytes, split over eight devices."""
LEAST = 0.01
"""Of all that is sent: what is less is left out."""
PARTS = {
    "float32 parameters": "parameters",
    "Adam's moments": "moments",
    "gradients": "gradients",
    "saved activations, remat, 8 sequences a device": "saved activations",
    "one block in the backward pass": "one block",
}

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(("by-hand", *BOARDS, *DEVICES)))
    options = arguments(parser)
    print(f"{versions()}\n")
    for name in options.names or ("by-hand", *BOARDS):
        if name in DEVICES:
            add_devices(name, options.record)
        else:
            add_gpt3(name, options.record)
        print()


def add_gpt3(name: str, records: bool) -> None:
    asked = BOARDS.get(name, BY_HAND)
    rows = board("--model=gpt3-175b", *asked)
    columns = COLUMNS if name in BOARDS else HELD
    with Table(f"plan/{name}", columns, records, f"shardtui plan --model=gpt3-175b {' '.join(asked)}") as table:
        if name not in BOARDS:
            add_parts(table, *rows)
            return
        for row in rows:
            is_left = "--search" in asked and not row["compiled"]
            if row["verdict"] != "infeasible" and not is_left:
                table.add(*cells(row))


def add_devices(name: str, records: bool) -> None:
    with Table(f"plan/{name}", DEVICE_COLUMNS, records) as table:
        for line in DEVICES[name].strip().splitlines():
            model, topology, batch, *rest = line.split()
            for row in board(f"--model={model}", f"--topology={topology}", f"--batch-size={batch}", *rest):
                table.add(model, topology, int(batch), *cells(row))


def board(*asked: str) -> list[Row]:
    command = [sys.executable, "-m", "shardtui.tui", "plan", "--json", *asked]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["rows"]


def cells(row: Row) -> list[Cell]:
    estimate, compiled = row["estimate"], row["compiled"]
    cost = compiled or estimate
    assert cost, row
    over = cost["peak_bytes"] - cost["capacity_bytes"]
    verdict = f"too large by {figures.size(over)}" if row["verdict"] == "too large" else row["verdict"]
    timed = compiled if compiled and compiled["step_seconds"] else estimate or cost
    flows = sent(compiled or {}) or sent(estimate or {})
    spread = ", ".join(
        f"{axes} {figures.size(count)}" for axes, count in flows.items() if count > LEAST * sum(flows.values())
    )
    return [
        title_of(row["preset"], row["settings"]),
        verdict,
        cost["peak_bytes"],
        cost["peak_bytes"] / cost["capacity_bytes"],
        spread,
        timed["step_seconds"],
        row["bound"],
        "compiler" if compiled else "formula",
        off(estimate["peak_bytes"], compiled["peak_bytes"]) if compiled and estimate else None,
        off(total(estimate), total(compiled)) if compiled and estimate else None,
    ]


def sent(cost: Row) -> dict[str, int]:
    """Bytes by axes, most first."""
    found: dict[str, int] = {}
    for flow in cost.get("collectives") or ():
        axes = figures.over(flow["axes"], flow["network"])
        found[axes] = found.get(axes, 0) + flow["bytes_sent"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def total(cost: Row) -> int:
    return sum(sent(cost).values())


def off(estimate: float, compiled: float) -> float | None:
    """Percent; None where the compiler says nothing."""
    return 100 * (estimate / compiled - 1) if compiled else None


def add_parts(table: Table, *rows: Row) -> None:
    by_preset = {row["preset"]: row for row in rows}
    known = [by_preset[name.strip("`")] for name in list(HELD)[2:]]
    parts = [row["estimate"]["parts"] for row in known]
    table.add(f'half-precision parameters ("{HALF}")', HAND, *(each[HALF] for each in parts))
    for name, part in PARTS.items():
        table.add(name, None, *(each[part] for each in parts))
    table.add("all, by formula", None, *(row["estimate"]["peak_bytes"] for row in known))
    table.add("all, by the compiler", None, *map(compiled_peak, known))


def compiled_peak(row: Row) -> Cell:
    compiled = row["compiled"]
    if not compiled:
        return None
    return compiled["peak_bytes"] if compiled["peak_bytes"] <= compiled["capacity_bytes"] else "too large"


if __name__ == "__main__":
    main()
