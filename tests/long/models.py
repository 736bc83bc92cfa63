"""Each model of docs/examples under two presets with a live switch between, against its guide's own loop in plain Flax
and Optax on one mesh: `python tests/long/models.py [--record]` (a minute or two)."""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.program.reshard import Transfers, move_state

from tests.models.test_user_model import EXAMPLES, batches_of, compiled, example_task, guides_losses, steps
from tests.suite import versions
from tests.table import Table, arguments

STEPS = 10
PRESETS = {
    "dot_relu_dot.py:DotReluDot": ("dp-tp4", "tp"),
    "dot_relu_dot.py:LogicalDotReluDot": ("fsdp-tp2", "dp"),
    "transformer.py:language_model": ("dp-tp2", "fsdp"),
    "vision_transformer.py:VisionTransformer": ("hsdp", "tp"),
    "digits.py:CNN": ("dp", "fsdp"),
}
COLUMNS = {
    "model": "",
    "presets": "",
    "first loss": "{:.4f}",
    "last loss": "{:.4f}",
    "furthest from its guide's loop": "{:.1e}",
}


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}\n")
    with Table("long/models", COLUMNS, options.record) as table:
        for model in EXAMPLES:
            table.add(f"`{model}`", " → ".join(PRESETS[model]), *compared(model))


def compared(model: str) -> tuple[float, float, float]:
    """First and last loss, and the largest relative difference."""
    task = example_task(model)
    first, second = (compiled(task, preset) for preset in PRESETS[model])
    batches = batches_of(task)
    half = STEPS // 2
    state, losses = steps(first, compile_initial_state(task, first.placement)(), batches, range(half))
    moved = move_state(state, first, second, Transfers())
    assert moved.digests_equal
    losses += steps(second, moved.state, batches, range(half, STEPS))[1]
    expected = guides_losses(model, task, STEPS)
    return losses[0], losses[-1], max(abs(one / other - 1) for one, other in zip(losses, expected, strict=True))


if __name__ == "__main__":
    main()
