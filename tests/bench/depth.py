"""How the time to lower and compile grows with the number of layers."""

import time
from statistics import median

import jax
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import trace_step
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_reader import load_preset

from .figure import Figure, at_most

FEW, MANY = 4, 96
REPEATS = 5


def run() -> list[Figure]:
    """Measures many layers compared with few."""
    pairs = [(_seconds(FEW), _seconds(MANY)) for _ in range(REPEATS)]
    few = median(seconds for seconds, _ in pairs)
    return [
        at_most(
            1.3,
            f"lower and compile {MANY} layers ÷ {FEW} layers",
            [many / few for few, many in pairs],
            "×",
            f"{FEW} layers: {few:.2f} s",
        )
    ]


def _seconds(layers: int) -> float:
    """Returns the seconds to lower and compile nano with so many layers under fsdp, with empty caches."""
    model = load_model("nano", (f"layers={layers}",))
    config = RunConfig(run="depth", model_name="nano", model=model.model, training=model.training, preset="fsdp")
    task = Task(config, "cpu")
    placement = place(task, load_preset("fsdp"), jax.devices())
    jax.clear_caches()
    began = time.perf_counter()
    trace_step(task, placement).lower().compile()
    return time.perf_counter() - began
