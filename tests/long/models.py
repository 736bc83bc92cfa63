"""Each model of docs/examples under two presets with a live switch between, against its guide's own loop in plain Flax
and Optax on one mesh: makes the table of docs/models.md. `python tests/long/models.py` (a minute or two)."""

import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

from shardtui.engine.program.program import compile_initial_state
from shardtui.engine.program.reshard import Movers, move_state
from tests.test_user_model import EXAMPLES, batches_of, compiled, example_task, guides_losses, steps

STEPS = 10
PRESETS = {
    "dot_relu_dot.py:DotReluDot": ("dp-tp4", "tp"),
    "dot_relu_dot.py:LogicalDotReluDot": ("fsdp-tp2", "dp"),
    "transformer.py:language_model": ("dp-tp2", "fsdp"),
    "vision_transformer.py:VisionTransformer": ("hsdp", "tp"),
    "digits.py:CNN": ("dp", "fsdp"),
}


def main() -> None:
    print(
        "| model | presets | first loss | last loss | furthest from its guide's loop |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    for model in EXAMPLES:
        task = example_task(model)
        first, second = (compiled(task, preset) for preset in PRESETS[model])
        batches = batches_of(task)
        half = STEPS // 2
        state, losses = steps(first, compile_initial_state(task, first.placement)(), batches, range(half))
        moved = move_state(state, first, second, Movers())
        assert moved.digests_equal
        losses += steps(second, moved.state, batches, range(half, STEPS))[1]
        expected = guides_losses(model, task, STEPS)
        furthest = max(abs(one / other - 1) for one, other in zip(losses, expected, strict=True))
        presets = " → ".join(PRESETS[model])
        print(f"| `{model}` | {presets} | {losses[0]:.4f} | {losses[-1]:.4f} | {furthest:.1e} |", flush=True)


if __name__ == "__main__":
    main()
