"""Do live switches, and restores on other meshes, change the losses of other families than GPT-2?
`python tests/long/families.py [--record]` (five minutes).

For each family a tiny model is read from a `config.json` of `transformers`: one run under `dp` alone, one that switches
every sixth of the way, and one under `fsdp-tp2` that ends at two thirds and goes on under `dp-tp2` on half the devices.
Dropout is on.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.long.losses import events, losses
from tests.oracle.tiny import write_config
from tests.suite import versions
from tests.table import Table, arguments

FAMILIES = ("LlamaForCausalLM", "Gemma3ForCausalLM", "Qwen3MoeForCausalLM", "MixtralForCausalLM", "Olmo2ForCausalLM")
ROUTE = ("fsdp", "dp-tp2", "hsdp", "fsdp-tp2-explicit", "dp")
STEPS = 36
COLUMNS = {
    "architecture": "",
    "last loss": "{:.4f}",
    "largest relative difference, switched": "{:.1e}",
    "receipts with equal digests": "{}",
    "largest relative difference, restored on 4 devices": "{:.1e}",
}


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}, {STEPS} steps\n")
    with Table("long/families", COLUMNS, options.record) as table:
        for architecture in FAMILIES:
            table.add(f"`{architecture}`", *measured(architecture))


def measured(architecture: str) -> tuple[float, float, str, float]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        write_config(architecture, model)
        common = [f"--model=hf:{model}", "--seq-len=32", "--batch-size=16", "--set=dropout=0.1"]
        switches = [f"--switch={STEPS // 6 * (n + 1)}:{preset}" for n, preset in enumerate(ROUTE)]
        plain = losses(events([*common, f"--steps={STEPS}"], folder))
        switched = events([*common, f"--steps={STEPS}", *switches], folder)
        events([*common, f"--steps={STEPS * 2 // 3}", "--preset=fsdp-tp2", "--run=half"], folder)
        restored = events(["--resume=half", f"--steps={STEPS}", "--preset=dp-tp2", "--devices=4"], folder)
    receipts = [event["digests_equal"] for event in switched if event["type"] == "Switched"]
    rest = losses(restored)
    assert len(rest) == STEPS // 3
    return (
        plain[-1],
        furthest(plain, losses(switched)),
        f"{sum(receipts)} of {len(ROUTE)}",
        furthest(plain[-len(rest) :], rest),
    )


def furthest(one: list[float], other: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / a for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
