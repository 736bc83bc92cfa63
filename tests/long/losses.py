"""Do switches, restores and layouts change the losses? `python tests/long/losses.py [GROUP …] [--steps 60] [--record]`.

Each group compares the losses of runs with those of the same steps under `dp` in one process, dropout on. `switches`:
five live switches, three seeds. `families`: tiny models of `transformers`, switched, and restored on half the devices.
`processes`: two and four of them, switched, and resumed halfway by another number. `pipelines`: pipelined presets, and
switches between them and others. `splits`: split sequences and experts, and explicit axis types, which
`shardtui compare` measures as well. Minutes each, `splits` ten.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.oracle.tiny import write_config
from tests.suite import printed, versions
from tests.table import Table, arguments

ROUTE = ("fsdp", "tp", "dp-tp2", "hsdp", "dp")
DIFFERENCE, RECEIPTS = "largest relative difference", "receipts with equal digests"
SWITCHES = {"seed": "", "last loss": "{:.4f}", DIFFERENCE: "{:.1e}", RECEIPTS: "{}", "longest stall": "milliseconds"}
FAMILIES = {"architecture": "", "last loss": "{:.4f}", f"{DIFFERENCE}, switched": "{:.1e}", RECEIPTS: "{}"}
FAMILIES |= {f"{DIFFERENCE}, restored on 4 devices": "{:.1e}"}
PROCESSES = {"processes": "", DIFFERENCE: "{:.1e}", RECEIPTS: "{}", "longest stall": "milliseconds"}
PIPELINES = {"": "", "last loss": "{:.4f}", f"{DIFFERENCE} to dp": "{:.1e}"}
SPLITS = {"model": "", "preset": "", "a step": "seconds", "sent as traced": "bytes", "as compiled": "bytes"}
SPLITS |= {"peak, predicted": "bytes", "largest difference of a loss": "{:.1e}"}
FAMILY_NAMES = ("Llama", "Gemma3", "Qwen3Moe", "Mixtral", "Olmo2")
EXAMPLE = "docs/examples/pp2-interleaved.toml"
STAGES = ("layers=4", "embed=64", "heads=8", "mlp=256", "context=64", "seq_len=64", "batch_size=16")
SMALL = ["--set=layers=2", "--set=embed=64", "--set=mlp=256", "--seq-len=64"]
LAYOUTS = (
    ("nano", ("--seq-len=128",), ("dp", "sp2", "dp-sp2", "fsdp-tp2", "fsdp-tp2-explicit")),
    ("nano", ("--seq-len=256", "--batch-size=8", "--set=context=256"), ("dp", "sp2", "dp-sp2")),
    ("nano-moe", ("--seq-len=32", "--batch-size=8"), ("dp", "dp-ep4", "ep2-tp2")),
    ("nano-moe", ("--seq-len=128",), ("dp", "dp-ep4")),
)
Events = list[dict[str, Any]]


def output(folder: str, *arguments: str) -> str:
    own = {"XDG_STATE_HOME": folder, "SHARDTUI_RUNTIME_DIR": f"{folder}/run"}
    return printed("-m", "shardtui.tui", *arguments, **own)


def trained(folder: str, *arguments: str) -> Events:
    return [json.loads(line) for line in output(folder, "train", "--json", *arguments).splitlines()]


def losses(events: Events) -> list[float]:
    return [event["loss"] for event in events if event["type"] == "StepDone"]


def furthest(plain: list[float], other: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / a for a, b in zip(plain, other, strict=True))


def receipts(events: Events, count: int) -> tuple[str, float]:
    """How many of so many switches and restores have equal digests, and the longest stall."""
    found = [event for event in events if event["type"] in ("Switched", "Restored")]
    equal = sum(event["digests_equal"] for event in found)
    return f"{equal} of {count}", max(event.get("stall_seconds", 0.0) for event in found)


def route(steps: int, presets: tuple[str, ...] = ROUTE) -> list[str]:
    every = steps // (len(presets) + 1)
    return [f"--switch={every * (n + 1)}:{preset}" for n, preset in enumerate(presets)]


def switches(table: Table, folder: str, steps: int) -> None:
    for seed in range(3):
        common = [f"--steps={steps}", f"--seed={seed}"]
        plain, switched = losses(trained(folder, *common)), trained(folder, *common, *route(steps))
        table.add(seed, plain[-1], furthest(plain, losses(switched)), *receipts(switched, len(ROUTE)))


def families(table: Table, folder: str, steps: int) -> None:
    steps = steps * 3 // 5
    through = ("fsdp", "dp-tp2", "hsdp", "fsdp-tp2-explicit", "dp")
    for architecture in (f"{name}ForCausalLM" for name in FAMILY_NAMES):
        model = Path(folder) / architecture
        model.mkdir()
        write_config(architecture, model)
        common = [f"--model=hf:{model}", "--seq-len=32", "--batch-size=16", "--set=dropout=0.1"]
        whole = [*common, f"--steps={steps}"]
        plain, switched = losses(trained(folder, *whole)), trained(folder, *whole, *route(steps, through))
        trained(folder, *common, f"--steps={steps * 2 // 3}", "--preset=fsdp-tp2", f"--run={architecture.lower()}")
        resumed = [f"--resume={architecture.lower()}", f"--steps={steps}", "--preset=dp-tp2", "--devices=4"]
        rest = losses(trained(folder, *resumed))
        equal = receipts(switched, len(through))[0]
        apart = furthest(plain[-len(rest) :], rest)
        table.add(f"`{architecture}`", plain[-1], furthest(plain, losses(switched)), equal, apart)


def processes(table: Table, folder: str, steps: int) -> None:
    alone, half = losses(trained(folder, *SMALL, f"--steps={steps}")), steps // 2 + 1
    early = [switch for switch in route(steps) if int(switch.partition("=")[2].partition(":")[0]) < half]
    late = route(steps)[len(early) :]
    for before, after in ((2, 4), (4, 2), (2, 1), (1, 4)):
        name = f"from-{before}-to-{after}"
        begin = [*SMALL, f"--run={name}", f"--processes={before}", f"--steps={half}", *early]
        found = trained(folder, *begin)
        found += trained(folder, f"--resume={name}", f"--processes={after}", f"--steps={steps}", *late)
        table.add(f"{before}, then {after}", furthest(alone, losses(found)), *receipts(found, len(ROUTE) + 1))


def pipelines(table: Table, folder: str, steps: int) -> None:
    routes = [("dp",), ("pp2",), ("dp-tp2-pp2",), (EXAMPLE,)]
    routes += [("dp", *route(steps, ("pp2", "fsdp-tp2", "dp-tp2-pp2", "dp")))]
    routes += [("dp", *route(steps, (EXAMPLE, "fsdp-tp2")))]
    common = [f"--steps={steps}", *(f"--set={setting}" for setting in STAGES)]
    runs = {" ".join(each): losses(trained(folder, *common, f"--preset={each[0]}", *each[1:])) for each in routes}
    for name, found in runs.items():
        table.add(name, found[-1], furthest(runs["dp"], found))


def splits(table: Table, folder: str, steps: int) -> None:
    for model, settings, presets in LAYOUTS:
        common = [f"--model={model}", *settings]
        board = json.loads(output(folder, "compare", *presets, "--json", *common))["rows"]
        rows = {row["preset"]: row for row in board}
        runs = {each: losses(trained(folder, f"--steps={steps}", f"--preset={each}", *common)) for each in presets}
        for preset in presets:
            row, apart = rows[preset], furthest(runs["dp"], runs[preset])
            sent = [row[source]["bytes_sent"] for source in ("estimate", "compiled")]
            cells = row["measured"]["step_seconds"], *sent, row["compiled"]["peak_bytes"]
            table.add(" ".join((model, *settings)), preset, *cells, apart if preset != "dp" else None)


GROUPS = {
    "switches": ("long/losses", SWITCHES, switches),
    "families": ("long/families", FAMILIES, families),
    "processes": ("long/hosts", PROCESSES, processes),
    "pipelines": ("long/pipeline", PIPELINES, pipelines),
    "splits": ("long/splits", SPLITS, splits),
}
"""Name to the table's name, its columns, and what fills it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)}; all by default")
    parser.add_argument("--steps", type=int, default=60)
    options = arguments(parser)
    print(f"{versions()}, {options.steps} steps")
    for group in options.groups or GROUPS:
        name, columns, fill = GROUPS[group]
        command = f"python tests/long/losses.py {group}"
        print()
        with tempfile.TemporaryDirectory() as folder, Table(name, columns, options.record, command) as table:
            fill(table, folder, options.steps)


if __name__ == "__main__":
    main()
